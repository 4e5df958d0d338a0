#include "rlk/model/bpe.h"

#include <queue>
#include <tuple>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/model/byte_level.h"

namespace rlk {
namespace {

constexpr std::size_t kCachedPieces = 1 << 16;
constexpr std::size_t kCachedPieceBytes = 128;

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

std::int32_t id_of(const BpeModel& model, std::string_view token, const std::string& source,
                   std::size_t merge) {
  const auto it = model.vocab.find(token);
  if (it == model.vocab.end()) {
    fail(ErrorCode::kFormat, "{}: model.merges[{}]: token \"{}\" is not in model.vocab", source,
         merge, token);
  }
  return it->second;
}

}  // namespace

// A token in the making, in a list linked by positions; -1 ends it.
struct Bpe::Symbol {
  std::int32_t id;
  std::int64_t previous;
  std::int64_t next;
  bool merged_away = false;
};

struct Bpe::Candidate {
  std::int32_t rank;
  std::int64_t position;
  std::int32_t id;

  bool operator<(const Candidate& other) const {  // std::priority_queue gives the greatest first
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

Bpe::Bpe(BpeModel model, const std::string& source) : model_(std::move(model)) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto it = model_.vocab.find(spell_bytes({&c, 1}));
    byte_ids_[static_cast<std::size_t>(byte)] = it == model_.vocab.end() ? -1 : it->second;
  }
  for (std::size_t i = 0; i < model_.merges.size(); ++i) {
    const auto& [left, right] = model_.merges[i];
    const std::int32_t left_id = id_of(model_, left, source, i);
    const std::int32_t right_id = id_of(model_, right, source, i);
    const std::int32_t id = id_of(model_, left + right, source, i);
    merges_.insert_or_assign(pair_key(left_id, right_id), Merge{static_cast<std::int32_t>(i), id});
  }
  model_.merges.clear();
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const auto it = merges_.find(pair_key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::vector<Bpe::Symbol> Bpe::byte_symbols(std::string_view piece) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  bool after_unk = false;
  for (char c : piece) {
    std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool is_unk = id < 0;
    if (is_unk && !model_.unk_id) {
      fail(ErrorCode::kInvalidArgument, "tokenizer: no token for byte 0x{:02x} in \"{}\"",
           static_cast<unsigned char>(c), piece.substr(0, 40));
    }
    if (is_unk) id = *model_.unk_id;
    if (!(is_unk && after_unk && model_.fuse_unk)) {
      const auto position = static_cast<std::int64_t>(symbols.size());
      symbols.push_back({id, position - 1, position + 1});
    }
    after_unk = is_unk;
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

void Bpe::merge(std::vector<Symbol>& symbols) const {
  std::priority_queue<Candidate> queue;
  const auto at = [&](std::int64_t position) -> Symbol& {
    return symbols[static_cast<std::size_t>(position)];
  };
  const auto push = [&](std::int64_t position) {
    if (position < 0 || at(position).next < 0) return;
    const Merge* found = find_merge(at(position).id, at(at(position).next).id);
    if (found) queue.push({found->rank, position, found->id});
  };
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) push(static_cast<std::int64_t>(i));

  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = at(top.position);
    if (left.merged_away || left.next < 0) continue;
    Symbol& right = at(left.next);
    // The pair may have changed since it was queued.
    const Merge* found = find_merge(left.id, right.id);
    if (!found || found->id != top.id) continue;
    left.id = found->id;
    right.merged_away = true;
    left.next = right.next;
    if (left.next >= 0) at(left.next).previous = top.position;
    push(left.previous);
    push(top.position);
  }
}

void Bpe::encode_uncached(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (model_.ignore_merges) {
    const auto it = model_.vocab.find(spell_bytes(piece));
    if (it != model_.vocab.end()) {
      ids.push_back(it->second);
      return;
    }
  }
  std::vector<Symbol> symbols = byte_symbols(piece);
  merge(symbols);
  for (const Symbol& symbol : symbols) {
    if (!symbol.merged_away) ids.push_back(symbol.id);
  }
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (piece.size() > kCachedPieceBytes) return encode_uncached(piece, ids);
  {
    const std::lock_guard<std::mutex> lock(cache_mutex_);
    const auto it = cache_.find(piece);
    if (it != cache_.end()) {
      ids.insert(ids.end(), it->second.begin(), it->second.end());
      return;
    }
  }
  std::vector<std::int32_t> piece_ids;
  encode_uncached(piece, piece_ids);
  ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
  const std::lock_guard<std::mutex> lock(cache_mutex_);
  if (cache_.size() < kCachedPieces) cache_.emplace(piece, std::move(piece_ids));
}

}  // namespace rlk
