/*
 * Preloaded into a process, gives threads small stacks, as musl (128 KiB) and macOS (512 KiB) do where no size is
 * named: those that name none, and with SMALL_STACK_OURS also those that an addon starts (a file whose name ends in
 * .node), whatever they name. Says so of each on stderr.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int Create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static int is_of_addon(const void *caller) {
  Dl_info of;
  if (dladdr(caller, &of) == 0 || of.dli_fname == NULL) return 0;
  const size_t length = strlen(of.dli_fname);
  return length > 5 && strcmp(of.dli_fname + length - 5, ".node") == 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *given, void *(*start)(void *), void *argument) {
  Create *const create = (Create *)dlsym(RTLD_NEXT, "pthread_create");
  const char *const size = getenv("SMALL_STACK");
  if (size == NULL || (given != NULL && !(getenv("SMALL_STACK_OURS") != NULL && is_of_addon(__builtin_return_address(0)))))
    return create(thread, given, start, argument);
  static const char said[] = "a small stack\n";
  if (write(2, said, sizeof said - 1) < 0) return 1;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, strtoul(size, NULL, 10));
  /* Below the stack is enough that no frame steps over it. */
  pthread_attr_setguardsize(&small, 1 << 20);
  const int error = create(thread, &small, start, argument);
  pthread_attr_destroy(&small);
  return error;
}
