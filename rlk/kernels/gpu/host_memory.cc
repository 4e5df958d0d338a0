// The GPU backend for tensors in host memory: each call's tensors go to the device and come back.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "rlk/device/device.h"
#include "rlk/kernels/gpu/gpu_kernels.h"
#include "rlk/kernels/inputs.h"

namespace rlk {
namespace {

// Host memory that views of a call cover, and its copy on the device.
struct Region {
  const char* begin;
  const char* end;
  char* copy = nullptr;
};

// Views that overlap share a region, so aliases stay aliases; gaps between rows travel too, so
// strides stay; and the copy lies as the original does relative to 256 bytes.
class Regions {
 public:
  void add(const ConstTensorView& t) {
    if (!t) return;
    const char* const begin = static_cast<const char*>(t.data);
    std::int64_t last = 0;
    for (int d = 0; d < t.rank(); ++d) {
      if (t.shape(d) == 0) return;
      last += (t.shape(d) - 1) * t.stride(d);
    }
    regions_.push_back({begin, begin + (last + 1) * static_cast<std::int64_t>(size_of(t.dtype))});
  }

  void copy_to_device(device::Queue& queue, device::Workspace::Frame& frame) {
    std::sort(regions_.begin(), regions_.end(),
              [](const Region& a, const Region& b) { return a.begin < b.begin; });
    std::vector<Region> merged;
    for (const Region& region : regions_) {
      if (merged.empty() || region.begin >= merged.back().end) {
        merged.push_back(region);
      } else {
        merged.back().end = std::max(merged.back().end, region.end);
      }
    }
    regions_ = std::move(merged);
    for (Region& region : regions_) {
      const auto offset =
          static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(region.begin) % kAlign);
      region.copy = frame.take<char>(region.end - region.begin + offset) + offset;
      device::copy(region.copy, region.begin, size(region), queue.stream());
    }
  }

  // Inputs too: a kernel that writes to one should be seen.
  void copy_to_host(device::Queue& queue) const {
    for (const Region& region : regions_) {
      device::copy(const_cast<char*>(region.begin), region.copy, size(region), queue.stream());
    }
    queue.stream().synchronize();
  }

  // The device's copy of host memory; the address itself where a view has no element.
  const void* on_device(const void* host) const {
    const char* const at = static_cast<const char*>(host);
    for (const Region& region : regions_) {
      if (at >= region.begin && at < region.end) return region.copy + (at - region.begin);
    }
    return host;
  }

 private:
  static constexpr std::uintptr_t kAlign = 256;
  static std::size_t size(const Region& region) {
    return static_cast<std::size_t>(region.end - region.begin);
  }
  std::vector<Region> regions_;
};

// The list of gradients is the caller's: views are redirected in a copy.
template <typename Args>
void own_lists(Args&, std::vector<ConstTensorView>*) {}
void own_lists(GradNormArgs& args, std::vector<ConstTensorView>* grads) {
  grads->assign(args.grads, args.grads + args.num_grads);
  args.grads = grads->data();
}

// What a forward pass leaves for the backward pass is a plan of the backend: here nothing.
template <typename Args>
void drop_state(Args& args) {
  if constexpr (requires { args.state; }) args.state = {};
  if constexpr (requires { args.forward; }) args.forward.state = {};
}

device::Queue& shared_queue() {
  static device::Queue queue;
  return queue;
}

template <typename Args, void (*KernelTable::*field)(Exec&, const Args&), Profile profile>
void call_on_device(Exec& exec, const Args& host_args) {
  Args args = host_args;
  std::vector<ConstTensorView> grads;
  own_lists(args, &grads);
  drop_state(args);
  device::Queue& queue = shared_queue();
  device::Workspace::Frame frame(queue.workspace());
  Regions regions;
  for_each_input(args, [&](const char*, ConstTensorView& t) { regions.add(t); });
  for_each_output(args, [&](const char*, TensorView& t) { regions.add(t); });
  regions.copy_to_device(queue, frame);
  for_each_input(args, [&](const char*, ConstTensorView& t) {
    if (t) t.data = regions.on_device(t.data);
  });
  for_each_output(args, [&](const char*, TensorView& t) {
    if (t) t.data = const_cast<void*>(regions.on_device(t.data));
  });
  Exec device_exec{exec.pool, exec.workspace, exec.contract, exec.fault, &queue};
  (gpu_kernels(profile).*field)(device_exec, args);
  regions.copy_to_host(queue);
}

template <Profile profile>
const KernelTable& partner() {
  static const KernelTable kTable = [] {
    KernelTable table = gpu_kernels(profile);
    table.on_device = false;
#define RLK_OP(name, Args) \
  if (table.name) table.name = &call_on_device<Args, &KernelTable::name, profile>;
    RLK_GPU_OPS(RLK_OP)
#undef RLK_OP
    return table;
  }();
  return kTable;
}

}  // namespace

const KernelTable& on_host_memory(const KernelTable& kernels) {
  const auto of = [&](Profile profile) { return &kernels == &gpu_kernels(profile); };
  if (of(Profile::kPortable)) return partner<Profile::kPortable>();
  if (of(Profile::kSm90)) return partner<Profile::kSm90>();
  if (of(Profile::kCdna3)) return partner<Profile::kCdna3>();
  if (of(Profile::kCdna2)) return partner<Profile::kCdna2>();
  return kernels;
}

}  // namespace rlk
