#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "rlk/kernels/gpu/gpu.h"

// Saves the registers a function must keep on the stack, leaves the stack pointer in *from, and
// goes on where `to` was left.
extern "C" void rlk_switch_fiber(void** from, void* to);
asm(R"(
.text
.type rlk_switch_fiber, @function
rlk_switch_fiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size rlk_switch_fiber, .-rlk_switch_fiber
)");

namespace rlk::emulation {

Place place;

namespace {

constexpr std::size_t kStackBytes = 128 * 1024;
constexpr int kMaxThreads = 1024;
constexpr int kWarp = 32;

enum class State { kRuns, kBarrier, kShuffle, kDone };

struct Fiber {
  void* stack_pointer;
  State state;
  float value;  // given to a shuffle
  float seen;   // the values of all at its end
};

Fiber fibers[kMaxThreads];
void* scheduler_stack;
char* stacks;
const std::function<void()>* body;
int count_now;   // of the barrier that is being reached
int count_last;  // of the one that was
bool reversed = false;
std::vector<char> shared_memory;

void wait_as(State state) {
  Fiber& fiber = fibers[place.thread];
  fiber.state = state;
  rlk_switch_fiber(&fiber.stack_pointer, scheduler_stack);
}

void fiber_main() {
  (*body)();
  wait_as(State::kDone);
}

void start(int thread) {
  char* const top = stacks + kStackBytes * static_cast<std::size_t>(thread + 1);
  // As a call would leave it: the stack pointer is 8 above a multiple of 16 at a function's start.
  void** at = reinterpret_cast<void**>(top) - 2;
  *at = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--at = nullptr;
  fibers[thread] = {at, State::kRuns, 0.0f, 0.0f};
}

bool all_wait(int begin, int end, State state) {
  bool any = false;
  for (int t = begin; t < end; ++t) {
    if (fibers[t].state == state) any = true;
    if (fibers[t].state != state && fibers[t].state != State::kDone) return false;
  }
  return any;
}

void release(int begin, int end, State state) {
  for (int t = begin; t < end; ++t) fibers[t].seen = fibers[t].value;
  for (int t = begin; t < end; ++t) {
    if (fibers[t].state == state) fibers[t].state = State::kRuns;
  }
}

void run_block(int threads) {
  for (int t = 0; t < threads; ++t) start(t);
  for (bool live = true; live;) {
    for (int i = 0; i < threads; ++i) {
      const int t = reversed ? threads - 1 - i : i;
      if (fibers[t].state != State::kRuns) continue;
      place.thread = t;
      rlk_switch_fiber(&scheduler_stack, fibers[t].stack_pointer);
    }
    live = false;
    bool moved = false;
    for (int begin = 0; begin < threads; begin += kWarp) {
      const int end = begin + kWarp < threads ? begin + kWarp : threads;
      if (all_wait(begin, end, State::kShuffle)) {
        release(begin, end, State::kShuffle);
        moved = true;
      }
    }
    if (all_wait(0, threads, State::kBarrier)) {
      count_last = std::exchange(count_now, 0);
      release(0, threads, State::kBarrier);
      moved = true;
    }
    for (int t = 0; t < threads; ++t) live = live || fibers[t].state != State::kDone;
    if (live && !moved) {
      std::fprintf(stderr, "GPU emulation: threads of a block wait for different things\n");
      std::abort();
    }
  }
}

}  // namespace

char* dynamic_shared() { return shared_memory.data(); }

int barrier_count(bool b) {
  count_now += b ? 1 : 0;
  wait_as(State::kBarrier);
  return count_last;
}

float shuffle_xor(float x, int mask) {
  fibers[place.thread].value = x;
  wait_as(State::kShuffle);
  return fibers[place.thread ^ mask].seen;
}

void run(const std::int64_t (&grid)[3], int threads, std::size_t shared_bytes,
         const std::function<void()>& kernel) {
  RLK_ASSERT(threads >= 1 && threads <= kMaxThreads);
  if (stacks == nullptr) {
    stacks = static_cast<char*>(mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    RLK_ASSERT(stacks != MAP_FAILED);
  }
  body = &kernel;
  place.threads = threads;
  const std::int64_t blocks = grid[0] * grid[1] * grid[2];
  for (std::int64_t i = 0; i < blocks; ++i) {
    const std::int64_t b = reversed ? blocks - 1 - i : i;
    place.block[0] = b % grid[0];
    place.block[1] = b / grid[0] % grid[1];
    place.block[2] = b / grid[0] / grid[1];
    shared_memory.assign(shared_bytes, static_cast<char>(0xff));
    run_block(threads);
  }
}

void set_reversed(bool r) { reversed = r; }

}  // namespace rlk::emulation
