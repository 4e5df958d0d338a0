#include "tests/gpu/emulation/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rlk/core/error.h"

namespace rlk::emulation {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSharedBytes = 256 * 1024;  // with gaps between the arrays
constexpr std::size_t kGap = 256;                 // between arrays
constexpr std::size_t kDeviceBytes = std::size_t{2} << 30;
constexpr std::size_t kVisibleBytes = std::size_t{1} << 30;  // to the host too
constexpr std::size_t kArenaBytes = kSharedBytes + kDeviceBytes + kVisibleBytes;
constexpr std::int64_t kEver = -1;             // before every time, and a byte that nobody wrote
constexpr std::size_t kLargestNumber = 16;     // that an access moves as one
constexpr std::uint16_t kMany = 0xffff;        // threads have read
constexpr std::uint16_t kAtomically = 0x8000;  // beside the number of a writer

// Time counts intervals between barriers; a launch and a block begin one too. A cell is when bytes
// were written and read last: the four of a word share one, until a part of the word is accessed.
struct Cell {
  std::uint32_t written = 0;
  std::uint32_t read = 0;
  std::uint16_t writer = 0;
  std::uint16_t reader = 0;
};
constexpr std::size_t kWord = 4;
constexpr std::uint32_t kSplit = 0xffffffff;  // written: the word's bytes have cells of their own

struct Allocation {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  std::int64_t forgotten = 0;  // what was written until then is not there
  bool visible = false;        // to the host, whose writes are not seen: nothing is forgotten
};

struct SharedArray {
  const void* key;
  const char* name;
  std::uintptr_t begin;
  std::uintptr_t end;
};

std::uint32_t now = 1;
std::uint32_t launch_begin = 1;
std::uint32_t block_begin = 1;
unsigned char fresh = 0xff;
Range may_touch[3];
bool may_touch_any = false;
std::vector<SharedArray> arrays;  // of the block
std::size_t arrays_bytes = 0;

void* reserve(std::size_t size_bytes, int protection) {
  void* const at =
      mmap(nullptr, size_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RLK_ASSERT(at != MAP_FAILED);
  return at;
}

struct Arena {
  std::uintptr_t begin =
      reinterpret_cast<std::uintptr_t>(reserve(kArenaBytes, PROT_READ | PROT_WRITE));
  std::uintptr_t device = begin + kSharedBytes;
  Cell* words =
      static_cast<Cell*>(reserve(kArenaBytes / kWord * sizeof(Cell), PROT_READ | PROT_WRITE));
  Cell* bytes = static_cast<Cell*>(reserve(kArenaBytes * sizeof(Cell), PROT_READ | PROT_WRITE));
  std::vector<Allocation> allocations = {{}};  // number 0 is none
  // Numbers, of each page behind shared memory.
  std::uint32_t* pages = static_cast<std::uint32_t*>(reserve(
      (kDeviceBytes + kVisibleBytes) / kPage * sizeof(std::uint32_t), PROT_READ | PROT_WRITE));
  // Of device memory, and of what the host sees too.
  std::size_t used[2] = {0, kDeviceBytes};
  std::multimap<std::size_t, std::uintptr_t> free_pages[2];  // by size

  Arena() {
    RLK_ASSERT(mprotect(reinterpret_cast<void*>(device + kDeviceBytes), kVisibleBytes,
                        PROT_READ | PROT_WRITE) == 0);
  }

  bool has(std::uintptr_t at) const { return at - begin < kArenaBytes; }
  bool is_shared(std::uintptr_t at) const { return at < device; }
  std::uint32_t number_of(std::uintptr_t at) const { return pages[(at - device) / kPage]; }
  Cell& word(std::uintptr_t at) const { return words[(at - begin) / kWord]; }
  Cell& byte(std::uintptr_t at) const { return bytes[at - begin]; }
  const Cell& cell(std::uintptr_t at) const {
    return word(at).written == kSplit ? byte(at) : word(at);
  }
  void split(std::uintptr_t at) const {
    Cell& cell = word(at);
    if (cell.written == kSplit) return;
    std::fill_n(&byte(at / kWord * kWord), kWord, cell);
    cell.written = kSplit;
  }
};
Arena* the_arena = nullptr;
Arena& arena() {
  if (the_arena == nullptr) the_arena = new Arena;  // for ever: memory may be freed at exit
  return *the_arena;
}

std::size_t pages_of(std::size_t size_bytes) { return (size_bytes + kPage - 1) / kPage * kPage; }

Allocation& allocation_at(std::uintptr_t at) { return arena().allocations[arena().number_of(at)]; }

const SharedArray* array_at(std::uintptr_t at) {
  for (const SharedArray& array : arrays) {
    if (at >= array.begin && at < array.end) return &array;
  }
  return nullptr;
}

// What `who` did at `when` matters to a thread that accesses the same byte now; what was done
// before `since` does not.
bool meets(std::uint32_t when, std::uint16_t who, int thread, std::uint32_t since) {
  if (when < since) return false;
  return when < block_begin || (when == now && who != thread);
}

std::recursive_mutex open_mutex;
int open_count = 0;
bool closes = false;

void protect(int protection) {
  RLK_ASSERT(mprotect(reinterpret_cast<void*>(arena().begin), kSharedBytes + kDeviceBytes,
                      protection) == 0);
}

}  // namespace

Open::Open() {
  open_mutex.lock();
  if (open_count++ == 0 && closes) protect(PROT_READ | PROT_WRITE);
}
Open::~Open() {
  if (--open_count == 0 && closes) protect(PROT_NONE);
  open_mutex.unlock();
}

void close_device_memory(bool yes) {
  const std::lock_guard lock(open_mutex);
  closes = yes;
  protect(yes ? PROT_NONE : PROT_READ | PROT_WRITE);
}

void* allocate(std::size_t size_bytes, bool visible) {
  if (size_bytes > kDeviceBytes) return nullptr;
  const Open open;
  Arena& a = arena();
  const std::size_t taken = pages_of(size_bytes);
  auto& free_pages = a.free_pages[visible];
  std::size_t& used = a.used[visible];
  std::uintptr_t at = a.device + used;
  if (const auto found = free_pages.find(taken); found != free_pages.end()) {
    at = found->second;
    free_pages.erase(found);
  } else {
    if (used + taken + kPage > kDeviceBytes + (visible ? kVisibleBytes : 0)) return nullptr;
    used += taken + kPage;  // a page that is nobody's lies behind each
  }
  const auto number = static_cast<std::uint32_t>(a.allocations.size());
  a.allocations.push_back({at, at + size_bytes, visible ? kEver : std::int64_t{now++}, visible});
  std::fill_n(a.pages + (at - a.device) / kPage, taken / kPage, number);
  std::memset(reinterpret_cast<void*>(at), fresh, size_bytes);
  return reinterpret_cast<void*>(at);
}

void free(void* data) {
  if (data == nullptr) return;
  Arena& a = arena();
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const Allocation freed = allocation_at(at);
  RLK_ASSERT(freed.begin == at);
  const Open open;
  const std::size_t taken = pages_of(freed.end - at);
  std::fill_n(a.pages + (at - a.device) / kPage, taken / kPage, 0u);
  a.free_pages[freed.visible].emplace(taken, at);
  // Pages of the system go back; cells that come back as zeros say the same.
  madvise(data, taken, MADV_DONTNEED);
  madvise(&a.word(at), taken / kWord * sizeof(Cell), MADV_DONTNEED);
}

bool is_device_memory(const void* data) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  return arena().has(at) && !arena().is_shared(at);
}

bool is_allocated(const void* data, std::size_t size_bytes) {
  if (!is_device_memory(data)) return false;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  return at + size_bytes <= allocation_at(at).end;
}

void wrote(const void* data, std::size_t size_bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (!kChecked || !arena().has(at)) return;
  const Open open;  // for its lock
  const Arena& a = arena();
  const Cell cell{now, 0, 0, 0};
  const std::uintptr_t end = at + size_bytes;
  const std::uintptr_t first = std::min((at + kWord - 1) / kWord * kWord, end);
  const std::uintptr_t last = std::max(end / kWord * kWord, first);
  std::fill(&a.word(first), &a.word(last), cell);
  for (const auto& [from, to] : {std::pair(at, first), std::pair(last, end)}) {
    for (std::uintptr_t i = from; i < to; ++i) {
      a.split(i);
      a.byte(i) = cell;
    }
  }
}

void forget(const void* data, std::size_t size_bytes) {
  const Open open;
  allocation_at(reinterpret_cast<std::uintptr_t>(data)).forgotten = now++;
  std::memset(const_cast<void*>(data), fresh, size_bytes);
}

void begin_launch(const Range (&host)[3], bool any_host_memory, unsigned char fresh_byte) {
  std::copy_n(host, 3, may_touch);
  may_touch_any = any_host_memory;
  fresh = fresh_byte;
  launch_begin = ++now;
}
void begin_block() {
  block_begin = ++now;
  arrays.clear();
  arrays_bytes = 0;
}
void end_interval() { ++now; }

char* shared_array_at(const void* key, const char* name, std::size_t size_bytes) {
  for (const SharedArray& array : arrays) {
    if (array.key == key) return reinterpret_cast<char*>(array.begin);
  }
  std::uintptr_t at = arena().begin + kGap;
  if (!arrays.empty()) at = (arrays.back().end + 2 * kGap - 1) / kGap * kGap;
  arrays.push_back({key, name, at, at + size_bytes});
  arrays_bytes += (size_bytes + 15) / 16 * 16;
  RLK_ASSERT(at + size_bytes <= arena().device);
  std::memset(reinterpret_cast<void*>(at), fresh, size_bytes);
  return reinterpret_cast<char*>(at);
}
std::size_t shared_bytes_used() { return arrays_bytes; }

namespace {

// What is wrong with an access to the bytes of a cell; if nothing is, it is noted.
inline Wrong check_cell(Cell& cell, Access access, int thread, std::int64_t oldest,
                        std::uint32_t since) {
  if (access != Access::kWrite && cell.written <= oldest) return Wrong::kNotWritten;
  const bool both_atomic = access == Access::kAtomic && (cell.writer & kAtomically) != 0;
  if (!both_atomic && meets(cell.written, cell.writer, thread, since)) return Wrong::kRace;
  const auto me = static_cast<std::uint16_t>(thread);
  if (access == Access::kRead) {
    cell.reader = cell.read == now && cell.reader != me ? kMany : me;
    cell.read = now;
    return Wrong::kNothing;
  }
  if (meets(cell.read, cell.reader, thread, since)) return Wrong::kRace;
  cell.writer = access == Access::kAtomic ? me | kAtomically : me;
  cell.written = now;
  return Wrong::kNothing;
}

}  // namespace

Wrong check(std::uintptr_t at, std::size_t size_bytes, Access access, int thread) {
  const Arena& a = *the_arena;
  if (!a.has(at)) {
    for (const Range& range : may_touch) {
      if (range.has(at)) return Wrong::kNothing;
    }
    return may_touch_any ? Wrong::kNothing : Wrong::kHostMemory;
  }
  std::int64_t oldest = 0;  // what is there was written behind
  std::uint32_t since = launch_begin;
  if (a.is_shared(at)) {
    const SharedArray* const array = array_at(at);
    if (array == nullptr || at + size_bytes > array->end) return Wrong::kOutside;
    oldest = std::int64_t{block_begin} - 1;
    since = block_begin;
  } else {
    const Allocation& allocation = a.allocations[a.number_of(at)];
    if (at >= allocation.end || at + size_bytes > allocation.end) return Wrong::kOutside;
    oldest = allocation.forgotten;
  }
  const std::uintptr_t end = at + size_bytes;
  if (access == Access::kRead && size_bytes > kLargestNumber) {
    // A copy of a struct, whose padding nobody may have written.
    for (std::uintptr_t i = at; a.cell(i).written <= oldest;) {
      if (++i == end) return Wrong::kNotWritten;
    }
    oldest = kEver;
  }
  for (std::uintptr_t i = at; i < end;) {
    Cell& word = a.word(i);
    const bool whole = i % kWord == 0 && end - i >= kWord;
    if (!whole) a.split(i);
    Wrong wrong = Wrong::kNothing;
    if (word.written != kSplit) {
      wrong = check_cell(word, access, thread, oldest, since);
      i += kWord;
    } else {
      const std::uintptr_t stop = whole ? i + kWord : i + 1;
      for (; i < stop && wrong == Wrong::kNothing; ++i) {
        wrong = check_cell(a.byte(i), access, thread, oldest, since);
      }
      // Written as a whole it is one word again: nobody else has read it in this interval.
      if (whole && access == Access::kWrite && wrong == Wrong::kNothing) word = a.byte(i - 1);
    }
    if (wrong != Wrong::kNothing) return wrong;
  }
  return Wrong::kNothing;
}

namespace {

std::string name_of(std::uintptr_t at, std::size_t size_bytes) {
  const Arena& a = arena();
  if (!a.has(at)) return "memory of the host";
  const auto element = [&](std::uintptr_t begin) {
    const auto offset = static_cast<std::int64_t>(at - begin);
    const auto size = static_cast<std::int64_t>(size_bytes);
    return offset % size == 0 ? fmt::format("[{}] of {} bytes each", offset / size, size)
                              : fmt::format(", {} bytes at byte {}", size, offset);
  };
  if (a.is_shared(at)) {
    // Behind the end of an array is still its neighbourhood.
    const SharedArray* nearest = nullptr;
    for (const SharedArray& array : arrays) {
      if (array.begin <= at) nearest = &array;
    }
    if (nearest == nullptr) return "shared memory before the first array";
    return fmt::format("shared array {}{} (it has {} bytes)", nearest->name,
                       element(nearest->begin), nearest->end - nearest->begin);
  }
  for (std::uintptr_t page = at; page + kPage > at && page >= a.device; page -= kPage) {
    const std::uint32_t number = a.number_of(page);
    if (number == 0) continue;
    const Allocation& found = a.allocations[number];
    return fmt::format("device memory of {} bytes, element {}", found.end - found.begin,
                       element(found.begin));
  }
  return "device memory that is free";
}

std::string other_of(const Cell& cell, int thread, std::uint32_t since) {
  const bool writer = meets(cell.written, cell.writer, thread, since);
  const std::uint32_t when = writer ? cell.written : cell.read;
  const std::uint16_t who = writer ? cell.writer : cell.reader;
  const char* const did = writer ? "wrote" : "read";
  if (when < block_begin) return fmt::format("another block of the launch {} it", did);
  if (who == kMany) return fmt::format("other threads {} it, and no barrier came since", did);
  return fmt::format("thread {} {} it, and no barrier came since", who & ~kAtomically, did);
}

}  // namespace

std::string describe(std::uintptr_t at, std::size_t size_bytes, Access access, int thread,
                     Wrong wrong) {
  const char* const verb = access == Access::kRead ? "reads" : "writes";
  const std::string what = fmt::format("{} {}", verb, name_of(at, size_bytes));
  switch (wrong) {
    case Wrong::kNothing:
    case Wrong::kHostMemory: return what;
    case Wrong::kOutside: return what + ": outside";
    case Wrong::kNotWritten: return what + ": nobody has written it";
    case Wrong::kRace: break;
  }
  const std::uint32_t since = arena().is_shared(at) ? block_begin : launch_begin;
  for (std::size_t i = 0; i < size_bytes; ++i) {
    const Cell& cell = arena().cell(at + i);
    if (meets(cell.written, cell.writer, thread, since) ||
        meets(cell.read, cell.reader, thread, since)) {
      return fmt::format("{}: {}", what, other_of(cell, thread, since));
    }
  }
  return what;
}

}  // namespace rlk::emulation
