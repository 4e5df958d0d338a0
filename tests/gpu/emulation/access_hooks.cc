// What the compiler calls for each access in code that is compiled with -fsanitize=thread. Outside
// of kernels nothing happens.
#include <cstddef>
#include <cstring>

#include "tests/gpu/emulation/memory.h"

using rlk::emulation::Access;

namespace {
inline void note(const void* at, std::size_t size_bytes, Access access, const void* code) {
  if (rlk::emulation::in_kernel) rlk::emulation::on_access(at, size_bytes, access, code);
}
}  // namespace

#define RLK_HOOK(name, bytes, access) \
  void __tsan_##name(void* at) { note(at, bytes, Access::access, __builtin_return_address(0)); }
#define RLK_HOOKS(bytes)                        \
  RLK_HOOK(read##bytes, bytes, kRead)           \
  RLK_HOOK(write##bytes, bytes, kWrite)         \
  RLK_HOOK(unaligned_read##bytes, bytes, kRead) \
  RLK_HOOK(unaligned_write##bytes, bytes, kWrite)

extern "C" {

RLK_HOOKS(1)
RLK_HOOKS(2)
RLK_HOOKS(4)
RLK_HOOKS(8)
RLK_HOOKS(16)
void __tsan_read_range(void* at, std::size_t size_bytes) {
  note(at, size_bytes, Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* at, std::size_t size_bytes) {
  note(at, size_bytes, Access::kWrite, __builtin_return_address(0));
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_init() {}
// Counts references, on the host.
unsigned __tsan_atomic32_fetch_add(unsigned* at, unsigned x, int) {
  return __atomic_fetch_add(at, x, __ATOMIC_SEQ_CST);
}

// clang copies structs with these; the linker sends all calls here (--wrap).
void* __real_memcpy(void* to, const void* from, std::size_t size_bytes);
void* __real_memmove(void* to, const void* from, std::size_t size_bytes);
void* __real_memset(void* to, int byte, std::size_t size_bytes);
void* __wrap_memcpy(void* to, const void* from, std::size_t size_bytes) {
  note(from, size_bytes, Access::kRead, __builtin_return_address(0));
  note(to, size_bytes, Access::kWrite, __builtin_return_address(0));
  return __real_memcpy(to, from, size_bytes);
}
void* __wrap_memmove(void* to, const void* from, std::size_t size_bytes) {
  note(from, size_bytes, Access::kRead, __builtin_return_address(0));
  note(to, size_bytes, Access::kWrite, __builtin_return_address(0));
  return __real_memmove(to, from, size_bytes);
}
void* __wrap_memset(void* to, int byte, std::size_t size_bytes) {
  note(to, size_bytes, Access::kWrite, __builtin_return_address(0));
  return __real_memset(to, byte, size_bytes);
}

}  // extern "C"
