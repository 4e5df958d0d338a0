#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "rlk/io/safetensors.h"

namespace rlk {
namespace {

constexpr std::size_t kHeaderAlignment = 8;

std::uint64_t bytes_of(const ConstTensorView& view) {
  return static_cast<std::uint64_t>(view.layout.size()) * size_of(view.dtype);
}

// Largest element size first keeps every tensor at a multiple of its own.
std::vector<NamedTensor> file_order(const std::string& path, std::vector<NamedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const std::size_t a_size = size_of(a.view.dtype);
    const std::size_t b_size = size_of(b.view.dtype);
    return a_size != b_size ? a_size > b_size : a.name < b.name;
  });
  for (const NamedTensor& tensor : tensors) {
    if (!tensor.view.layout.contiguous()) {
      fail(ErrorCode::kInvalidArgument, "{}: tensor {} of shape {} has gaps", path, tensor.name,
           tensor.view.layout.to_string());
    }
  }
  return tensors;
}

std::string header_text(const std::string& path, const std::vector<NamedTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t begin = 0;
  for (const NamedTensor& tensor : tensors) {
    if (header.contains(tensor.name) || tensor.name == "__metadata__") {
      fail(ErrorCode::kInvalidArgument, "{}: tensor name {} is used twice or reserved", path,
           tensor.name);
    }
    const Layout& layout = tensor.view.layout;
    const std::uint64_t end = begin + bytes_of(tensor.view);
    header[tensor.name] = {{"dtype", to_string(tensor.view.dtype)},
                           {"shape", std::vector<std::int64_t>(layout.shape.begin(),
                                                               layout.shape.begin() + layout.rank)},
                           {"data_offsets", std::array<std::uint64_t, 2>{begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::vector<NamedTensor> ordered = file_order(path, tensors);
  const std::string header = header_text(path, ordered, metadata);
  std::array<char, 8> size_field{};
  for (std::size_t i = 0; i < 8; ++i) size_field[i] = static_cast<char>(header.size() >> (8 * i));

  AtomicFile file(path);
  file.write(size_field.data(), size_field.size());
  file.write(header);
  for (const NamedTensor& tensor : ordered) file.write(tensor.view.data, bytes_of(tensor.view));
  file.commit();
}

}  // namespace rlk
