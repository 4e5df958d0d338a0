// Tensor files: every byte of every tensor that a header names can be read.
#include "rlk/io/safetensors.h"
#include "tests/fuzz/fuzz.h"

using rlk::fuzz::promise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rlk::fuzz::loads_or_refuses([&] {
    const std::string_view bytes = rlk::fuzz::text(data, size);
    const rlk::SafetensorsHeader header = rlk::parse_safetensors_header(bytes, rlk::fuzz::kSource);
    promise(header.data_begin <= size, "the data begin inside the file");
    std::uint64_t covered = 0;
    for (const auto& [name, tensor] : header.tensors) {
      promise(name == tensor.name, "a tensor has its name");
      promise(tensor.begin <= tensor.end && tensor.end <= size - header.data_begin,
              "a tensor lies inside the file");
      promise(static_cast<std::uint64_t>(tensor.layout.size()) * rlk::size_of(tensor.dtype) ==
                  tensor.end - tensor.begin,
              "a tensor has the bytes of its shape");
      covered += tensor.end - tensor.begin;
    }
    promise(covered == size - header.data_begin, "the tensors cover the file");
  });
}
