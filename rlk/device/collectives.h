// Collectives between the devices of a job, by NCCL or RCCL. They move bytes and add nothing: a
// library's sum has no fixed order and may flush subnormals (docs/contract.md, section 1). What has
// to be summed is gathered, and added by our own kernels in the contract's order
// (kernels/reduce_ranks.h).
//
// The library is opened when it is first needed, so that a program without one runs on one device.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "rlk/device/device.h"

namespace rlk::device {

// The functions of libnccl.so.2 and librccl.so.1 that are used; their names are the same.
class CollectiveLibrary {
 public:
  // Errors  kNotAvailable: `path` cannot be opened, or lacks a function; names both.
  explicit CollectiveLibrary(const std::string& path);
  ~CollectiveLibrary();
  CollectiveLibrary(const CollectiveLibrary&) = delete;
  CollectiveLibrary& operator=(const CollectiveLibrary&) = delete;

  const std::string& path() const { return path_; }
  std::string version() const;  // "2.21.5"

 private:
  friend class Communicator;
  struct Functions;

  void check(int result, const char* call) const;

  std::string path_;
  void* handle_ = nullptr;
  std::unique_ptr<Functions> functions_;
};

// The library that goes with this build, opened once: librccl.so.1 for HIP, else libnccl.so.2.
const CollectiveLibrary& collective_library();

// All ranks of a job call the same functions in the same order, each for its own device. Work is
// given to the stream (null: the device's own) and runs there in order. Memory is device memory;
// sizes are bytes. Errors  kNotAvailable naming library and call.
class Communicator {
 public:
  // Made by one rank, which brings it to the others by any means.
  struct Id {
    std::array<char, 128> bytes;
  };
  static Id make_id(const CollectiveLibrary& library = collective_library());

  // Waits until all `size` ranks are there. The device is that which select() chose.
  Communicator(const Id& id, int rank, int size,
               const CollectiveLibrary& library = collective_library());
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // to[r * size_bytes, ...) = what rank r has in `from`.
  void all_gather(void* to, const void* from, std::size_t size_bytes, Stream* stream) const;
  // `data` of every rank becomes that of `root`.
  void broadcast(void* data, std::size_t size_bytes, int root, Stream* stream) const;
  // To and from one peer at a time; both sides name each other. Neither waits for the other side
  // between begin_group and end_group, where several transfers are given at once.
  void send(const void* from, std::size_t size_bytes, int peer, Stream* stream) const;
  void receive(void* to, std::size_t size_bytes, int peer, Stream* stream) const;
  void begin_group() const;
  void end_group() const;

 private:
  const CollectiveLibrary& library_;
  int rank_, size_;
  void* communicator_ = nullptr;
};

}  // namespace rlk::device
