#include "start_thread.h"

#include <cerrno>
#include <system_error>
#if defined(_WIN32)
#include <windows.h>

#include <process.h>
#endif

namespace palimpsest {

#if defined(__wasm__)

// A WebAssembly module has only one thread, and nobody asks for another (kHasThreads).
Thread Thread::start(std::unique_ptr<Body>) { __builtin_trap(); }
void Thread::join() { __builtin_trap(); }

#else

#if defined(_WIN32)

unsigned __stdcall Thread::begin(void* body) {
  std::unique_ptr<Body>(static_cast<Body*>(body))->run();
  return 0;
}

Thread Thread::start(std::unique_ptr<Body> body) {
  Thread thread;
  const uintptr_t handle = _beginthreadex(nullptr, static_cast<unsigned>(kThreadStack), begin, body.get(), STACK_SIZE_PARAM_IS_A_RESERVATION, nullptr);
  if (handle == 0) throw std::system_error(errno, std::generic_category(), "no thread could be started");
  body.release();  // now the thread's
  thread.handle_ = reinterpret_cast<void*>(handle);
  thread.isThere_ = true;
  return thread;
}

void Thread::join() {
  WaitForSingleObject(handle_, INFINITE);
  CloseHandle(handle_);
  isThere_ = false;
}

#else

void* Thread::begin(void* body) {
  std::unique_ptr<Body>(static_cast<Body*>(body))->run();
  return nullptr;
}

Thread Thread::start(std::unique_ptr<Body> body) {
  Thread thread;
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error == 0) {
    error = pthread_attr_setstacksize(&attributes, kThreadStack);
    if (error == 0) error = pthread_create(&thread.handle_, &attributes, begin, body.get());
    pthread_attr_destroy(&attributes);
  }
  if (error != 0) throw std::system_error(error, std::generic_category(), "no thread could be started");
  body.release();  // now the thread's
  thread.isThere_ = true;
  return thread;
}

void Thread::join() {
  pthread_join(handle_, nullptr);
  isThere_ = false;
}

#endif
#endif

}  // namespace palimpsest
