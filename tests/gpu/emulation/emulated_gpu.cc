#include "rlk/kernels/gpu/gpu.h"

#include <sys/mman.h>

#include <boost/context/fiber.hpp>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/emulation/memory.h"
#include "tests/gpu/emulation/program_symbols.h"

extern "C" char __executable_start;
extern "C" char end;

namespace rlk::emulation {

Place place;
bool in_kernel = false;

namespace {

// (Not a power of two, so that the fibers' stacks do not meet in the same lines of a cache.)
constexpr std::size_t kStackBytes = 128 * 1024 + 448;
constexpr int kMaxThreads = 1024;
constexpr int kMaxWaves = kMaxThreads / 32;
constexpr std::size_t kMaxShared = 64 * 1024;  // what every GPU has

Options current;

enum class State { kRuns, kBarrier, kExchange, kDone };

struct Fiber {
  boost::context::fiber context;
  State state;
  std::string_view kind;  // of what it waits for
  int exchanges;          // so far
};

// Fibers that run on the stacks below.
Fiber fibers[kMaxThreads];
boost::context::fiber scheduler;
char* stacks;
const Call* call;
int count_now;   // of the barrier that is being reached
int count_last;  // of the one that was
std::string violation;
// Two of them: a thread may leave its next payload before all have read the last ones.
Payload payloads[2][kMaxThreads];
std::uint64_t present[2][kMaxWaves];

// A fiber's stack stays where it is.
struct Stack {
  int thread;
  boost::context::stack_context allocate() const {
    boost::context::stack_context out;
    out.size = kStackBytes;
    out.sp = stacks + kStackBytes * static_cast<std::size_t>(thread + 1);
    return out;
  }
  void deallocate(boost::context::stack_context&) const noexcept {}
};

void go_to_scheduler() { scheduler = std::move(scheduler).resume(); }

void wait_as(State state, const char* kind) {
  Fiber& fiber = fibers[place.thread];
  fiber.state = state;
  fiber.kind = kind;
  go_to_scheduler();
}

void start(int thread) {
  fibers[thread].state = State::kRuns;
  fibers[thread].kind = "";
  fibers[thread].exchanges = 0;
  fibers[thread].context =
      boost::context::fiber(std::allocator_arg, Stack{thread}, [](boost::context::fiber&& from) {
        scheduler = std::move(from);
        in_kernel = true;
        call->invoke(call->kernel, call->arguments);
        in_kernel = false;
        fibers[place.thread].state = State::kDone;
        return std::move(scheduler);
      });
}

void resume(int thread) {
  place.thread = thread;
  fibers[thread].context = std::move(fibers[thread].context).resume();
  in_kernel = false;
}

std::string place_text(int thread) {
  return fmt::format("GPU emulation: kernel {}, block ({}, {}, {}), thread {}",
                     function_name(call->kernel), place.block[0], place.block[1], place.block[2],
                     thread);
}

// Numbers in an order that the seed permutes.
class Order {
 public:
  explicit Order(std::uint64_t seed) : state_(seed) {}

  // Below n.
  std::int64_t pick(std::int64_t n) {
    if (state_ == 0) return 0;
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::int64_t>((state_ >> 33) % static_cast<std::uint64_t>(n));
  }
  // Calls visit(i) for all i in [0, n).
  template <typename Visit>
  void for_each(std::int64_t n, const Visit& visit) {
    const std::int64_t first = pick(n);
    std::int64_t step = 1 + pick(n);
    while (std::gcd(step, n) != 1) ++step;
    for (std::int64_t i = 0; i < n; ++i) visit((first + i * step) % n);
  }

 private:
  std::uint64_t state_;
};

class Block {
 public:
  Block(int threads, Order* order) : threads_(threads), order_(*order) {}

  void run() {
    for (int t = 0; t < threads_; ++t) start(t);
    std::vector<int> waves((threads_ + current.wave - 1) / current.wave);
    for (;;) {
      std::iota(waves.begin(), waves.end(), 0);
      while (!waves.empty()) {  // those that can go on
        const std::int64_t i = order_.pick(static_cast<std::int64_t>(waves.size()));
        advance(waves[i]);
        if (!violation.empty()) return;
        if (!finish_exchange(waves[i])) waves.erase(waves.begin() + i);
        if (!violation.empty()) return;
      }
      if (!finish_barrier()) return;
      waves.resize((threads_ + current.wave - 1) / current.wave);
    }
  }

 private:
  int begin(int wave) const { return wave * current.wave; }
  int end(int wave) const { return std::min(threads_, (wave + 1) * current.wave); }

  // Its threads run until each of them waits.
  void advance(int wave) {
    const int first = begin(wave);
    order_.for_each(end(wave) - first, [&](std::int64_t i) {
      const int t = first + static_cast<int>(i);
      if (fibers[t].state == State::kRuns && violation.empty()) resume(t);
    });
  }

  // The first thread in [from, to) that has not ended, or -1.
  static int first_live(int from, int to) {
    for (int t = from; t < to; ++t) {
      if (fibers[t].state != State::kDone) return t;
    }
    return -1;
  }

  // All that have not ended must wait for the same.
  static bool agree(int from, int to) {
    const int first = first_live(from, to);
    for (int t = from; t < to; ++t) {
      if (fibers[t].state == State::kDone) continue;
      if (fibers[t].state == fibers[first].state && fibers[t].kind == fibers[first].kind) {
        continue;
      }
      violation = fmt::format("{} waits in {}, thread {} in {}", place_text(t), fibers[t].kind,
                              first, fibers[first].kind);
      return false;
    }
    return true;
  }

  // Lets the threads of a wave go on that wait for each other. False: there are none.
  bool finish_exchange(int wave) {
    bool any = false;
    for (int t = begin(wave); t < end(wave); ++t) any |= fibers[t].state == State::kExchange;
    if (!any || !agree(begin(wave), end(wave))) return false;
    std::uint64_t lanes = 0;
    int parity = 0;
    for (int t = begin(wave); t < end(wave); ++t) {
      if (fibers[t].state != State::kExchange) continue;
      lanes |= std::uint64_t{1} << (t - begin(wave));
      parity = fibers[t].exchanges % 2;
      fibers[t].state = State::kRuns;
    }
    present[parity][wave] = lanes;
    return true;
  }

  // False: all have ended, or they wait for different things.
  bool finish_barrier() {
    const int first = first_live(0, threads_);
    if (first < 0 || !agree(0, threads_)) return false;
    count_last = std::exchange(count_now, 0);
    end_interval();
    for (int t = first; t < threads_; ++t) {
      if (fibers[t].state == State::kBarrier) fibers[t].state = State::kRuns;
    }
    return true;
  }

  int threads_;
  Order& order_;
};

// Fibers that will never go on must not be destroyed: that would unwind a kernel in the middle.
void abandon_fibers() {
  for (Fiber& fiber : fibers) {
    if (fiber.context) static_cast<void>(new boost::context::fiber(std::move(fiber.context)));
  }
}

void set(const Options& options) {
  RLK_ASSERT(options.wave == 32 || options.wave == 64);
  if (options.host_may_touch_device != current.host_may_touch_device) {
    close_device_memory(!options.host_may_touch_device);
  }
  current = options;
}

Range range_of(const void* at, std::size_t size_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  return {begin, begin + size_bytes};
}

}  // namespace

Scope::Scope(const Options& options) : before_(current) { set(options); }
Scope::~Scope() { set(before_); }
const Options& options() { return current; }

char* shared_array(const char* key, const char* name, std::size_t size_bytes) {
  const Pause pause;
  char* const array = shared_array_at(key, name, size_bytes);
  if (shared_bytes_used() > kMaxShared) {
    stop(fmt::format("asks for {} bytes of shared memory, a GPU may have {}", shared_bytes_used(),
                     kMaxShared),
         __builtin_return_address(0));
  }
  return array;
}
char* dynamic_shared(const char* name) { return shared_array(nullptr, name, call->shared_bytes); }

int barrier_count(bool b, const char* kind) {
  const Pause pause;
  count_now += b ? 1 : 0;
  wait_as(State::kBarrier, kind);
  return count_last;
}

int lane() { return place.thread % current.wave; }

Wave exchange(const void* payload, std::size_t size_bytes, const char* kind) {
  const Pause pause;
  RLK_ASSERT(size_bytes <= kPayloadBytes);
  Fiber& fiber = fibers[place.thread];
  const int parity = ++fiber.exchanges % 2;
  std::memcpy(&payloads[parity][place.thread], payload, size_bytes);
  wait_as(State::kExchange, kind);
  const int wave = place.thread / current.wave;
  return {&payloads[parity][wave * current.wave], present[parity][wave], kind};
}

const void* Wave::at(int lane) const {
  const Pause pause;
  if (lane < 0 || lane >= current.wave || (present_ >> lane & 1) == 0) {
    stop(fmt::format("reads lane {} of its wave in {}, which is not there", lane, kind_),
         __builtin_return_address(0));
  }
  return &lanes_[lane];
}

float shuffle_xor(float x, int mask) {
  return exchange(&x, sizeof x, "shuffle_xor").payload<float>(lane() ^ mask);
}

void atomic_min(unsigned long long* at, unsigned long long x) {
  on_access(at, sizeof *at, Access::kAtomic, __builtin_return_address(0));
  if (x < *at) *at = x;
}
void atomic_max(int* at, int x) {
  on_access(at, sizeof *at, Access::kAtomic, __builtin_return_address(0));
  if (x > *at) *at = x;
}
unsigned long long atomic_add(unsigned long long* at, unsigned long long x) {
  on_access(at, sizeof *at, Access::kAtomic, __builtin_return_address(0));
  return std::exchange(*at, *at + x);
}
unsigned atomic_add(unsigned* at, unsigned x) {
  on_access(at, sizeof *at, Access::kAtomic, __builtin_return_address(0));
  return std::exchange(*at, *at + x);
}

void on_access(const void* at, std::size_t size_bytes, Access access, const void* code) {
  if (!kChecked) return;
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const Wrong wrong = check(address, size_bytes, access, place.thread);
  if (wrong == Wrong::kNothing) return;
  const Pause pause;
  stop(describe(address, size_bytes, access, place.thread, wrong), code);
}

void stop(const std::string& what, const void* code) {
  in_kernel = false;
  violation = fmt::format("{}: {} (at {})", place_text(place.thread), what, code_address(code));
  for (;;) go_to_scheduler();
}

void run(const Call& c) {
  RLK_ASSERT(c.threads >= 1 && c.threads <= kMaxThreads);
  const Open open;
  constexpr std::size_t kStacks = kStackBytes * kMaxThreads;
  if (stacks == nullptr) {
    stacks = static_cast<char*>(mmap(nullptr, kStacks, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    RLK_ASSERT(stacks != MAP_FAILED);
  }
  call = &c;
  place.threads = c.threads;
  count_now = 0;
  Order order(current.seed);
  const Range host[3] = {
      range_of(stacks, kStacks), range_of(c.arguments, c.arguments_bytes),
      range_of(&__executable_start, static_cast<std::size_t>(&end - &__executable_start))};
  begin_launch(host, current.kernels_may_touch_host,
               static_cast<unsigned char>(current.seed == 0 ? 0xff : order.pick(256)));
  order.for_each(c.grid[0] * c.grid[1] * c.grid[2], [&](std::int64_t b) {
    if (!violation.empty()) return;
    place.block[0] = b % c.grid[0];
    place.block[1] = b / c.grid[0] % c.grid[1];
    place.block[2] = b / c.grid[0] / c.grid[1];
    begin_block();
    Block(c.threads, &order).run();
  });
  if (violation.empty()) return;
  abandon_fibers();
  throw Violation(std::exchange(violation, ""));
}

}  // namespace rlk::emulation
