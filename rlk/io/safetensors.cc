#include "rlk/io/safetensors.h"

#include <cstring>
#include <set>

#include <nlohmann/json.hpp>

#include "rlk/io/json.h"

namespace rlk {
namespace {

template <typename Map>
std::vector<std::string> keys_of(const Map& map) {
  std::vector<std::string> keys;
  keys.reserve(map.size());
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

[[noreturn]] void fail_missing(const std::string& path, std::string_view name,
                               const std::vector<std::string>& names) {
  const std::string nearest = nearest_name(name, names);
  fail(ErrorCode::kFormat, "{}: tensor {} is missing{}", path, name,
       nearest.empty() ? "" : fmt::format("; the nearest name there is {}", nearest));
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(path), header_(parse_safetensors_header(file_.bytes(), path)) {
  for (const auto& [name, entry] : header_.tensors) {
    const std::uint64_t offset = header_.data_begin + entry.begin;
    if (offset % size_of(entry.dtype) == 0 || entry.begin == entry.end) continue;
    std::vector<std::int64_t> shape(entry.layout.shape.begin(),
                                    entry.layout.shape.begin() + entry.layout.rank);
    Tensor copy(entry.dtype, shape);
    std::memcpy(copy.data<char>(), file_.data() + offset, entry.end - entry.begin);
    realigned_.emplace(name, std::move(copy));
  }
}

std::vector<std::string> SafetensorsFile::names() const { return keys_of(header_.tensors); }

ConstTensorView SafetensorsFile::tensor(std::string_view name) const {
  const auto it = header_.tensors.find(name);
  if (it == header_.tensors.end()) fail_missing(path_, name, names());
  const auto copy = realigned_.find(name);
  if (copy != realigned_.end()) return copy->second;
  const TensorEntry& entry = it->second;
  return {file_.data() + header_.data_begin + entry.begin, entry.dtype, entry.layout};
}

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  const std::string single = join_path(folder, "model.safetensors");
  const std::string index = join_path(folder, "model.safetensors.index.json");
  if (file_exists(single)) {
    open_single(single);
  } else if (file_exists(index)) {
    open_shards(index);
  } else {
    fail(ErrorCode::kIo, "{}: neither model.safetensors nor model.safetensors.index.json is there",
         folder);
  }
}

void Checkpoint::open_single(const std::string& path) {
  shards_.push_back(std::make_unique<SafetensorsFile>(path));
  for (const std::string& name : shards_[0]->names()) shard_of_[name] = 0;
}

void Checkpoint::open_shards(const std::string& index_path) {
  const JsonDocument document = JsonDocument::load(index_path);
  FieldReader weight_map = document.object().object("weight_map");
  std::map<std::string, std::size_t> shard_index;
  for (const std::string& name : weight_map.keys()) {
    const auto file = weight_map.required<std::string>(name);
    if (file.empty() || file.find('/') != std::string::npos) {
      weight_map.refuse(ErrorCode::kFormat, name,
                        fmt::format("expected a file name without folders, got \"{}\"", file));
    }
    const auto [it, is_new] = shard_index.emplace(file, shards_.size());
    if (is_new) {
      const std::string path = join_path(folder_, file);
      if (!file_exists(path)) {
        fail(ErrorCode::kIo, "{}: this shard, which {} names, is missing", path, index_path);
      }
      shards_.push_back(std::make_unique<SafetensorsFile>(path));
    }
    shard_of_[name] = it->second;
  }
  if (shard_of_.empty()) fail(ErrorCode::kFormat, "{}: weight_map names no tensor", index_path);

  std::map<std::string, std::string> seen_in;
  for (const auto& shard : shards_) {
    for (const std::string& name : shard->names()) {
      const auto [it, is_new] = seen_in.emplace(name, shard->path());
      if (!is_new) {
        fail(ErrorCode::kFormat, "{}: tensor {} lies in {} as well", shard->path(), name,
             it->second);
      }
    }
  }
  for (const auto& [name, shard] : shard_of_) {
    if (!shards_[shard]->contains(name)) {
      fail(ErrorCode::kFormat, "{}: tensor {} is missing, but {} places it here",
           shards_[shard]->path(), name, index_path);
    }
  }
}

std::vector<std::string> Checkpoint::names() const { return keys_of(shard_of_); }

const SafetensorsFile& Checkpoint::shard(std::string_view name) const {
  const auto it = shard_of_.find(name);
  if (it == shard_of_.end()) {
    fail_missing(shards_.size() == 1 ? shards_[0]->path() : folder_, name, names());
  }
  return *shards_[it->second];
}

ConstTensorView Checkpoint::tensor(std::string_view name) const { return shard(name).tensor(name); }

const std::string& Checkpoint::path_of(std::string_view name) const { return shard(name).path(); }

}  // namespace rlk
