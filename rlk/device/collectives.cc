#include "rlk/device/collectives.h"

#include <dlfcn.h>

#include "rlk/core/error.h"

namespace rlk::device {
namespace {

// From nccl.h: a result (0 is success), the type of bytes, a communicator.
using Result = int;
constexpr int kSuccess = 0;
constexpr int kUint8 = 1;
using Comm = void*;

#if defined(__HIP_PLATFORM_AMD__)
constexpr const char* kLibrary = "librccl.so.1";
#else
constexpr const char* kLibrary = "libnccl.so.2";
#endif

void* native(Stream* stream) { return stream ? stream->native() : nullptr; }

}  // namespace

struct CollectiveLibrary::Functions {
  Result (*get_version)(int* version);
  Result (*get_unique_id)(Communicator::Id* id);
  Result (*comm_init_rank)(Comm* comm, int size, Communicator::Id id, int rank);
  Result (*comm_destroy)(Comm comm);
  Result (*all_gather)(const void* from, void* to, std::size_t count, int type, Comm comm,
                       void* stream);
  Result (*broadcast)(const void* from, void* to, std::size_t count, int type, int root, Comm comm,
                      void* stream);
  Result (*send)(const void* from, std::size_t count, int type, int peer, Comm comm, void* stream);
  Result (*receive)(void* to, std::size_t count, int type, int peer, Comm comm, void* stream);
  Result (*group_start)();
  Result (*group_end)();
  const char* (*get_error_string)(Result result);
};

CollectiveLibrary::CollectiveLibrary(const std::string& path)
    : path_(path), functions_(std::make_unique<Functions>()) {
  handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle_) {
    const char* reason = dlerror();
    fail(ErrorCode::kNotAvailable, "collectives: {} cannot be opened: {}", path,
         reason ? reason : "no reason given");
  }
  const auto find = [&](auto*& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle_, name));
    if (function) return;
    dlclose(handle_);
    fail(ErrorCode::kNotAvailable, "collectives: {} has no {}", path, name);
  };
  find(functions_->get_version, "ncclGetVersion");
  find(functions_->get_unique_id, "ncclGetUniqueId");
  find(functions_->comm_init_rank, "ncclCommInitRank");
  find(functions_->comm_destroy, "ncclCommDestroy");
  find(functions_->all_gather, "ncclAllGather");
  find(functions_->broadcast, "ncclBroadcast");
  find(functions_->send, "ncclSend");
  find(functions_->receive, "ncclRecv");
  find(functions_->group_start, "ncclGroupStart");
  find(functions_->group_end, "ncclGroupEnd");
  find(functions_->get_error_string, "ncclGetErrorString");
}

CollectiveLibrary::~CollectiveLibrary() { dlclose(handle_); }

std::string CollectiveLibrary::version() const {
  int version = 0;  // 22105 is 2.21.5
  check(functions_->get_version(&version), "ncclGetVersion");
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

void CollectiveLibrary::check(int result, const char* call) const {
  if (result == kSuccess) return;
  fail(ErrorCode::kNotAvailable, "collectives: {}: {} failed: {} ({})", path_, call,
       functions_->get_error_string(result), result);
}

const CollectiveLibrary& collective_library() {
  static const CollectiveLibrary kOpened(kLibrary);
  return kOpened;
}

Communicator::Id Communicator::make_id(const CollectiveLibrary& library) {
  Id id{};
  library.check(library.functions_->get_unique_id(&id), "ncclGetUniqueId");
  return id;
}

Communicator::Communicator(const Id& id, int rank, int size, const CollectiveLibrary& library)
    : library_(library), rank_(rank), size_(size) {
  if (size < 1 || rank < 0 || rank >= size) {
    fail(ErrorCode::kInvalidArgument, "collectives: rank {} of {}: expected 0 to {}", rank, size,
         size - 1);
  }
  library_.check(library_.functions_->comm_init_rank(&communicator_, size, id, rank),
                 "ncclCommInitRank");
}

Communicator::~Communicator() {
  static_cast<void>(library_.functions_->comm_destroy(communicator_));
}

void Communicator::all_gather(void* to, const void* from, std::size_t size_bytes,
                              Stream* stream) const {
  library_.check(
      library_.functions_->all_gather(from, to, size_bytes, kUint8, communicator_, native(stream)),
      "ncclAllGather");
}

void Communicator::broadcast(void* data, std::size_t size_bytes, int root, Stream* stream) const {
  library_.check(library_.functions_->broadcast(data, data, size_bytes, kUint8, root, communicator_,
                                                native(stream)),
                 "ncclBroadcast");
}

void Communicator::send(const void* from, std::size_t size_bytes, int peer, Stream* stream) const {
  library_.check(
      library_.functions_->send(from, size_bytes, kUint8, peer, communicator_, native(stream)),
      "ncclSend");
}

void Communicator::receive(void* to, std::size_t size_bytes, int peer, Stream* stream) const {
  library_.check(
      library_.functions_->receive(to, size_bytes, kUint8, peer, communicator_, native(stream)),
      "ncclRecv");
}

void Communicator::begin_group() const {
  library_.check(library_.functions_->group_start(), "ncclGroupStart");
}

void Communicator::end_group() const {
  library_.check(library_.functions_->group_end(), "ncclGroupEnd");
}

}  // namespace rlk::device
