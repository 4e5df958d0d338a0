// Stands in for device.cc where the build has no GPU.
#include "rlk/core/error.h"
#include "rlk/device/device.h"

namespace rlk::device {
namespace {

[[noreturn]] void missing() {
  fail(ErrorCode::kNotAvailable, "this build has no GPU code (cmake --preset cuda, or hip)");
}

}  // namespace

std::vector<Info> list() { return {}; }
void require() { missing(); }
Info selected() { missing(); }
void select(int) { missing(); }
bool reach_peer(int) { missing(); }
void allow_shared_memory(const void*, std::size_t) { missing(); }

Stream::Stream() { missing(); }
Stream::~Stream() = default;
void Stream::synchronize() { missing(); }

Buffer::Buffer(std::size_t) { missing(); }
Buffer::~Buffer() = default;

void copy(void*, const void*, std::size_t, Stream&) { missing(); }
void fill(void*, unsigned char, std::size_t, Stream&) { missing(); }

Memory& managed_memory() { missing(); }
Memory& pinned_memory() { missing(); }

Event::Event() { missing(); }
Event::~Event() = default;
void Event::record(Stream&) { missing(); }
float Event::elapsed_ms_since(const Event&) const { missing(); }

Graph::Graph(Stream&, const std::function<void()>&) { missing(); }
Graph::~Graph() = default;
void Graph::launch(Stream&) { missing(); }

}  // namespace rlk::device
