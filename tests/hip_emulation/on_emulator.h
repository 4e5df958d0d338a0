// Kernels of a test on the emulator.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rlk/kernels/gpu/gpu.h"
#include "tests/gpu/emulation/memory.h"
#include "tests/kernels/test_data.h"

namespace rlk::test {

class OnEmulator : public testing::Test {
 protected:
  OnEmulator() { exec_.exec.gpu = &queue_; }

  // What is wrong with a launch; "" if nothing is.
  template <typename... P, typename... A>
  std::string launch(const gpu::Grid& grid, int threads, std::size_t shared_bytes,
                     void (*kernel)(P...), const A&... arguments) {
    try {
      gpu::launch(exec_.exec, grid, threads, shared_bytes, kernel, arguments...);
    } catch (const emulation::Violation& e) {
      return e.what();
    }
    return "";
  }

  device::Queue queue_;
  TestExec exec_;
};

// Numbers in device memory. Without values nobody has written them.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t size) : size_(size), buffer_(size * sizeof(T)) {}
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    device::copy(buffer_.data(), values.data(), buffer_.size_bytes(), stream_);
  }
  T* data() const { return static_cast<T*>(buffer_.data()); }
  std::vector<T> values() {
    std::vector<T> out(size_);
    device::copy(out.data(), buffer_.data(), buffer_.size_bytes(), stream_);
    stream_.synchronize();
    return out;
  }

 private:
  std::size_t size_;
  device::Stream stream_;
  device::Buffer buffer_;
};

inline testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << text << "\" does not say \"" << part << "\"";
}

}  // namespace rlk::test
