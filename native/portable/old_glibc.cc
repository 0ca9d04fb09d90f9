// Lets a prebuilt addon run on a glibc older than the one it was built with. glibc 2.34 moved its thread functions from
// libpthread, and dlsym from libdl, to libc and gave them a new symbol version there. It still provides the old
// versions, with the same meaning, so every machine has them. The linker redirects each call to this file
// (wrapped.flags), which calls the old version. Used only in builds with portable=1; scripts/prebuild.mjs makes them
// and also checks which versions the finished binary needs.
#include <pthread.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#else
#error "the oldest glibc version of this architecture is not known"
#endif

#define OLD(name) __asm__(".symver old_" #name "," #name "@" OLDEST)

extern "C" {

OLD(pthread_create);
OLD(pthread_join);
OLD(pthread_detach);
OLD(pthread_once);
OLD(pthread_key_create);
OLD(pthread_key_delete);
OLD(pthread_getspecific);
OLD(pthread_setspecific);
OLD(pthread_attr_setstacksize);
OLD(dlsym);

int old_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int old_pthread_join(pthread_t, void**);
int old_pthread_detach(pthread_t);
int old_pthread_once(pthread_once_t*, void (*)());
int old_pthread_key_create(pthread_key_t*, void (*)(void*));
int old_pthread_key_delete(pthread_key_t);
void* old_pthread_getspecific(pthread_key_t);
int old_pthread_setspecific(pthread_key_t, const void*);
int old_pthread_attr_setstacksize(pthread_attr_t*, size_t);
void* old_dlsym(void*, const char*);

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  return old_pthread_create(thread, attributes, start, argument);
}
int __wrap_pthread_join(pthread_t thread, void** result) { return old_pthread_join(thread, result); }
int __wrap_pthread_detach(pthread_t thread) { return old_pthread_detach(thread); }
int __wrap_pthread_once(pthread_once_t* once, void (*run)()) { return old_pthread_once(once, run); }
int __wrap_pthread_key_create(pthread_key_t* key, void (*destroy)(void*)) { return old_pthread_key_create(key, destroy); }
int __wrap___pthread_key_create(pthread_key_t* key, void (*destroy)(void*)) { return old_pthread_key_create(key, destroy); }
int __wrap_pthread_key_delete(pthread_key_t key) { return old_pthread_key_delete(key); }
void* __wrap_pthread_getspecific(pthread_key_t key) { return old_pthread_getspecific(key); }
int __wrap_pthread_setspecific(pthread_key_t key, const void* value) { return old_pthread_setspecific(key, value); }
int __wrap_pthread_attr_setstacksize(pthread_attr_t* attributes, size_t bytes) { return old_pthread_attr_setstacksize(attributes, bytes); }
void* __wrap_dlsym(void* library, const char* name) { return old_dlsym(library, name); }

// In glibc 2.32 and later this tells whether the process has a single thread, so that counters need no lock. Ours
// always says that it has more.
char __libc_single_threaded = 0;

}  // extern "C"
