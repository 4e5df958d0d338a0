// Device and shared memory of the emulated GPU, and what is known of each byte: who wrote it and
// who read it last, and when.
//
// Kernels are compiled with -fsanitize=thread and without its library: the compiler then calls a
// function for every access that it does not keep in registers, and access_hooks.cc lets check()
// look at each. So the kernels' text is checked as it is, to the byte, and what one seed's order
// hides is found by the rule that it breaks:
//
//   outside      memory that is no allocation, or host memory
//   not written  device memory that nobody, shared memory that nobody in this block has written
//   race         a byte that another thread of the block has written, or read and it is written
//                now, without a barrier in between; or another block, in the same launch
//
// Guard pages would find a part of the first, two runs with different values in fresh memory a part
// of the second, two orders of the threads a part of the third, and none could name the access.
// Where kernels cannot be compiled so (with another sanitizer), kChecked is false: fresh memory
// then holds values that depend on the seed, and the order is permuted, which is what is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace rlk::emulation {

#ifdef RLK_EMULATION_CHECKED
inline constexpr bool kChecked = true;
#else
inline constexpr bool kChecked = false;
#endif

// A kernel did what none may do. Not an Error: nothing that handles those should catch it.
class Violation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Device memory, in pages of its own; null where there is none left. What is `visible` to the host
// is never closed (see Open), and counts as written.
void* allocate(std::size_t size_bytes, bool visible);
void free(void* data);
// Whether it is device memory at all, and whether it lies in one piece of it that is not freed.
bool is_device_memory(const void* data);
bool is_allocated(const void* data, std::size_t size_bytes);
// The host has given every byte a value.
void wrote(const void* data, std::size_t size_bytes);
// Forgets the values.
void forget(const void* data, std::size_t size_bytes);

// While this lives device memory is open. Otherwise the host that touches it dies of it, if
// close_device_memory(true) says so: that costs a system call for every launch and copy.
void close_device_memory(bool yes);
class Open {
 public:
  Open();
  ~Open();
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
};

enum class Access { kRead, kWrite, kAtomic };

// For the scheduler: a launch, which may use so much host memory (its arguments, the fibers'
// stacks, the program's constants), a block of it, and what a barrier ends.
struct Range {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool has(std::uintptr_t at) const { return at - begin < end - begin; }
};
void begin_launch(const Range (&host)[3], bool any_host_memory, unsigned char fresh_byte);
void begin_block();
void end_interval();
// An array in the shared memory of the block: the same for the same key.
char* shared_array_at(const void* key, const char* name, std::size_t size_bytes);
// Of the block so far.
std::size_t shared_bytes_used();

enum class Wrong { kNothing, kHostMemory, kOutside, kNotWritten, kRace };
// Looks at an access of the thread `thread` of the current block, and notes it unless it is wrong.
Wrong check(std::uintptr_t at, std::size_t size_bytes, Access access, int thread);
// In words, after check() has found it wrong.
std::string describe(std::uintptr_t at, std::size_t size_bytes, Access access, int thread,
                     Wrong wrong);

// In emulated_gpu.cc. A kernel's own text runs; it accesses memory, at `code`; and it must not go
// on.
extern bool in_kernel;
// While the emulator works for a fiber, its own memory is not the kernel's.
class Pause {
 public:
  Pause() : before_(std::exchange(in_kernel, false)) {}
  ~Pause() { in_kernel = before_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool before_;
};
void on_access(const void* at, std::size_t size_bytes, Access access, const void* code);
[[noreturn]] void stop(const std::string& what, const void* code);

}  // namespace rlk::emulation
