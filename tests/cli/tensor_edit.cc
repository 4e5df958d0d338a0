#include "tests/cli/tensor_edit.h"

#include <cstring>

#include <nlohmann/json.hpp>

#include "rlk/io/files.h"

namespace rlk {

EditableTensors read_tensors(const std::string& path) {
  const std::string file = read_file(path);
  std::uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), sizeof header_size);
  const auto header = nlohmann::json::parse(file.substr(sizeof header_size, header_size));
  const std::string data = file.substr(sizeof header_size + header_size);
  EditableTensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors[name] = {entry["dtype"], entry["shape"], data.substr(begin, end - begin)};
  }
  return tensors;
}

void write_tensors(const std::string& path, const EditableTensors& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const std::uint64_t header_size = text.size();
  std::string file(sizeof header_size, '\0');
  std::memcpy(file.data(), &header_size, sizeof header_size);
  write_file(path, file + text + data);
}

}  // namespace rlk
