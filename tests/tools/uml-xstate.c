// uml-xstate.c - lets the user-mode Linux of Debian 12 (6.1) run on processors with AMX; uml-run.sh loads it into it.
//
// Such a kernel keeps 2,696 octets of a process's extended registers. A host with AMX has some 11,000, gives as many as are
// asked for, but takes none back unless it gets all of them, and the machine ends before its first process
// (fatal_sigsegv, put_fp_registers). What is set is completed here with what the process has.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

long ptrace(enum __ptrace_request request, ...) {
  static long (*next)(int, ...);
  if (!next) next = dlsym(RTLD_NEXT, "ptrace");
  va_list list;
  va_start(list, request);
  int pid = va_arg(list, int);
  void *addr = va_arg(list, void *), *data = va_arg(list, void *);
  va_end(list);
  if (request == PTRACE_SETREGSET && (long)addr == NT_X86_XSTATE) {
    static char registers[1 << 16];
    struct iovec *given = data, whole = {registers, sizeof registers};
    if (next(PTRACE_GETREGSET, pid, addr, &whole) == 0 && given->iov_len < whole.iov_len) {
      memcpy(registers, given->iov_base, given->iov_len);
      return next(request, pid, addr, &whole);
    }
  }
  return next(request, pid, addr, data);
}
