// Devices that reach each other's memory.
#include "rlk/core/error.h"
#include "rlk/device/device.h"
#include "rlk/device/gpu_runtime.h"

namespace rlk::device {

bool reach_peer(int peer) {
  require();
  int self = 0;
  int can = 0;
  const auto check = [&](RLK_GPU(Error_t) result, const char* call) {
    if (result == RLK_GPU(Success)) return;
    static_cast<void>(RLK_GPU(GetLastError)());
    fail(ErrorCode::kNotAvailable, "GPU {}: {} for peer {} failed: {}", self, call, peer,
         RLK_GPU(GetErrorString)(result));
  };
  check(RLK_GPU(GetDevice)(&self), "GetDevice");
  if (peer == self) return true;
  check(RLK_GPU(DeviceCanAccessPeer)(&can, self, peer), "DeviceCanAccessPeer");
  if (!can) return false;
  const RLK_GPU(Error_t) result = RLK_GPU(DeviceEnablePeerAccess)(peer, 0);
  if (result == RLK_GPU(ErrorPeerAccessAlreadyEnabled)) {
    static_cast<void>(RLK_GPU(GetLastError)());
    return true;
  }
  check(result, "DeviceEnablePeerAccess");
  return true;
}

}  // namespace rlk::device
