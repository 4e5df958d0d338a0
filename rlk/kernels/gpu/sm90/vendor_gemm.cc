#include "rlk/kernels/gpu/sm90/vendor_gemm.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/device/vendor_products.h"
#include "rlk/kernels/gpu/gemm_shape.h"
#include "rlk/kernels/gpu/sm90/table.h"
#include "rlk/kernels/gpu/sm90/vendor_vectors.h"
#include "rlk/kernels/vendor_plans.h"

namespace rlk::gpu::sm90 {
namespace {

using device::ProductLibrary;
using device::VendorProduct;

// Numbers of rows up to which an algorithm is looked for, as gemm_few_rows has kernels.
constexpr std::array<std::int64_t, 4> kMostRows = {8, 16, 32, 64};
constexpr int kMostAlgorithms = 16;
constexpr int kMostTurns = 64;

// An algorithm for up to so many rows; without a product: none.
struct Choice {
  std::shared_ptr<const VendorProduct> product;
  int algorithm = 0;
};
struct Entry {
  VendorPlan plan;
  std::array<Choice, kMostRows.size()> choices;
};

class Plans {
 public:
  const Entry* find(const ProductLibrary* library, const VendorShape& shape) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find({library, shape});
    return found == entries_.end() ? nullptr : &found->second;
  }
  // What was there first stays: graphs may know it.
  const Entry& add(const ProductLibrary* library, Entry entry) {
    const std::lock_guard lock(mutex_);
    return entries_.try_emplace({library, entry.plan.shape}, std::move(entry)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<const ProductLibrary*, VendorShape>, Entry> entries_;
};

// Never destroyed: the library may be gone when a static object is.
Plans& plans() {
  static Plans& plans = *new Plans;
  return plans;
}

class Trial {
 public:
  Trial(Exec& exec, const VendorShape& shape, const VendorEffort& effort)
      : exec_(exec),
        shape_(shape),
        repeats_(effort.repeats),
        worth_(effort.worth),
        turns_(std::clamp<std::int64_t>(effort.rotated_bytes / (shape.n * shape.k * 2), 1,
                                        kMostTurns)),
        a_(bytes(kMostRows.back() * shape.k * 2)),
        b_(bytes(turns_ * shape.n * shape.k * 2)),
        ours_(bytes(kMostRows.back() * shape.n) * size_of(shape.c)),
        theirs_(ours_.size_bytes()),
        differences_(kMostRows.size() * kMostAlgorithms * sizeof(unsigned long long)) {}

  void run(Entry& out) {
    for (const std::int64_t rows : kMostRows) add_candidates(rows);
    for (int f = 0; f < kNumVectorFamilies; ++f) compare(static_cast<VectorFamily>(f));
    fill_vectors(exec_, VectorFamily::kNear, 0, a(), kMostRows.back(), shape_.k);
    fill_vectors(exec_, VectorFamily::kNear, 1, b(), turns_ * shape_.n, shape_.k);
    for (std::size_t i = 0; i < kMostRows.size(); ++i) choose(kMostRows[i], out.choices[i]);
    for (Candidate& c : candidates_) out.plan.trials.push_back(std::move(c.trial));
  }

 private:
  struct Candidate {
    VendorTrial trial;
    Choice choice;
    std::int64_t fewest_rows;
  };

  static std::size_t bytes(std::int64_t count) { return static_cast<std::size_t>(count); }
  device::Stream& stream() { return exec_.gpu->stream(); }
  bf16* a() const { return static_cast<bf16*>(a_.data()); }
  bf16* b(std::int64_t turn = 0) const {
    return static_cast<bf16*>(b_.data()) + turn * shape_.n * shape_.k;
  }
  TensorView result(const device::Buffer& buffer, std::int64_t rows) const {
    return {buffer.data(), shape_.c, Layout{rows, shape_.n}};
  }
  GemmArgs args(std::int64_t rows, std::int64_t turn = 0) const {
    GemmArgs args;
    args.c = result(ours_, rows);
    args.a = rows_of_k(a(), rows);
    args.b = rows_of_k(b(turn), shape_.n);
    args.segments = {shape_.k, 0, 0};
    return args;
  }
  ConstTensorView rows_of_k(const bf16* first, std::int64_t rows) const {
    return view(first, {rows, shape_.k});
  }
  void run_theirs(const Candidate& c, std::int64_t rows, std::int64_t turn = 0) {
    c.choice.product->run(c.choice.algorithm, rows, theirs_.data(), a(), b(turn), stream());
  }

  void add_candidates(std::int64_t rows) {
    const GemmArgs like = args(rows);
    const auto product = std::make_shared<const VendorProduct>(
        *exec_.gpu->products, like.c, like.a, like.b, device::Sums::kWhole, kMostAlgorithms);
    const std::int64_t fewest = candidates_.empty() ? 1 : candidates_.back().trial.most_rows + 1;
    for (int i = 0; i < product->num_algorithms(); ++i) {
      Candidate c;
      c.trial.most_rows = rows;
      c.trial.algorithm = product->name(i);
      c.choice = {product, i};
      c.fewest_rows = fewest;
      candidates_.push_back(std::move(c));
    }
  }

  // The most rows of each candidate with every family, the other numbers of rows in turn.
  void compare(VectorFamily family) {
    fill_vectors(exec_, family, 0, a(), kMostRows.back(), shape_.k);
    fill_vectors(exec_, family, 1, b(), shape_.n, shape_.k);
    gemm(exec_, args(kMostRows.back()));  // a row's bits do not depend on the others
    auto* const differences = static_cast<unsigned long long*>(differences_.data());
    device::fill(differences, 0xff, differences_.size_bytes(), stream());
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      Candidate& c = candidates_[i];
      for (std::int64_t rows = c.fewest_rows; rows <= c.trial.most_rows; ++rows) {
        const bool in_turn = rows % kNumVectorFamilies == static_cast<int>(family);
        if (!c.trial.difference.empty() || !(in_turn || rows == c.trial.most_rows)) continue;
        ++c.trial.vectors;
        device::fill(theirs_.data(), 0xff, theirs_.size_bytes(), stream());
        try {
          run_theirs(c, rows);
        } catch (const Error& e) {
          c.trial.difference = fmt::format("{} rows: {}", rows, e.what());
          continue;
        }
        note_difference(exec_, ours_.data(), theirs_.data(), rows * shape_.n, shape_.c, rows,
                        differences + i);
      }
    }
    std::vector<unsigned long long> found(candidates_.size());
    device::copy(found.data(), differences, found.size() * sizeof found[0], stream());
    stream().synchronize();
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (found[i] != ~0ull) describe(candidates_[i], family, found[i]);
    }
  }

  float number(const device::Buffer& buffer, std::int64_t i) {
    std::uint32_t bits = 0;
    const std::size_t size = size_of(shape_.c);
    device::copy(reinterpret_cast<char*>(&bits) + (sizeof bits - size),
                 static_cast<const char*>(buffer.data()) + bytes(i) * size, size, stream());
    stream().synchronize();
    return std::bit_cast<float>(bits);
  }
  void describe(Candidate& c, VectorFamily family, unsigned long long difference) {
    const auto rows = static_cast<std::int64_t>(difference >> 40);
    const auto i = static_cast<std::int64_t>(difference & ((1ull << 40) - 1));
    run_theirs(c, rows);
    c.trial.difference =
        fmt::format("{} rows, {}: c[{}, {}] is {:a}, ours {:a}", rows, to_string(family),
                    i / shape_.n, i % shape_.n, number(theirs_, i), number(ours_, i));
  }

  // A graph of one call for each turn.
  std::unique_ptr<device::Graph> graph(const std::function<void(std::int64_t turn)>& call) {
    return std::make_unique<device::Graph>(stream(), [&] {
      for (std::int64_t turn = 0; turn < turns_; ++turn) call(turn);
    });
  }
  // Median times of a call in each graph, the graphs in turn.
  std::vector<double> times_us(std::vector<std::unique_ptr<device::Graph>>& graphs) {
    std::vector<std::vector<double>> times(graphs.size());
    device::Event start, end;
    for (int repeat = -1; repeat < repeats_; ++repeat) {  // the first one warms up
      for (std::size_t i = 0; i < graphs.size(); ++i) {
        start.record(stream());
        graphs[i]->launch(stream());
        end.record(stream());
        const double ms = end.elapsed_ms_since(start);
        if (repeat >= 0) times[i].push_back(1000 * ms / static_cast<double>(turns_));
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& t : times) {
      std::nth_element(t.begin(), t.begin() + std::ssize(t) / 2, t.end());
      medians.push_back(t[t.size() / 2]);
    }
    return medians;
  }

  void choose(std::int64_t rows, Choice& choice) {
    std::vector<Candidate*> equal;
    for (Candidate& c : candidates_) {
      if (c.trial.most_rows == rows && c.trial.difference.empty()) equal.push_back(&c);
    }
    if (equal.empty()) return;
    PackedWeight weight;  // so that our kernel may read weights before the one before it has ended
    pack_weight(exec_, {&weight, args(rows).b});
    std::vector<std::unique_ptr<device::Graph>> graphs;
    const auto ours = [&](std::int64_t turn) {
      GemmArgs call = args(rows, turn);
      call.packed_b = &weight;
      gemm(exec_, call);
    };
    ours(0);
    stream().synchronize();
    graphs.push_back(graph(ours));
    for (const Candidate* c : equal) {
      graphs.push_back(graph([&](std::int64_t turn) { run_theirs(*c, rows, turn); }));
    }
    const std::vector<double> us = times_us(graphs);
    Candidate* best = nullptr;
    for (std::size_t i = 0; i < equal.size(); ++i) {
      VendorTrial& t = equal[i]->trial;
      t.our_us = us[0];
      t.us = us[i + 1];
      if (!best || t.us < best->trial.us) best = equal[i];
    }
    if (best->trial.us > worth_ * us[0]) return;
    best->trial.chosen = true;
    choice = best->choice;
  }

  Exec& exec_;
  VendorShape shape_;
  int repeats_;
  double worth_;
  std::int64_t turns_;
  device::Buffer a_, b_, ours_, theirs_, differences_;
  std::vector<Candidate> candidates_;
};

bool reads_whole(const ConstTensorView& t) {
  return t.stride(1) == 1 && t.stride(0) == t.shape(1) &&
         reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

}  // namespace

bool vendor_gemm(Exec& exec, const GemmArgs& args) {
  const ProductLibrary* const library = exec.gpu->products;
  if (!library) return false;
  const GemmShape s = GemmShape::of(exec, args);
  const auto* const most = std::lower_bound(kMostRows.begin(), kMostRows.end(), s.m);
  if (s.m == 0 || most == kMostRows.end() || s.leaves != 1 || args.bias ||
      args.a.dtype != DType::kBF16 || !reads_whole(args.a) || !reads_whole(args.b) ||
      !reads_whole(args.c)) {
    return false;
  }
  const Entry* const entry = plans().find(library, {s.n, s.k, args.c.dtype});
  if (!entry) return false;
  const Choice& choice = entry->choices[static_cast<std::size_t>(most - kMostRows.begin())];
  if (!choice.product) return false;
  choice.product->run(choice.algorithm, s.m, args.c.data, args.a.data, args.b.data,
                      exec.gpu->stream());
  return true;
}

}  // namespace rlk::gpu::sm90

namespace rlk {

const VendorPlan& try_vendor_products(Exec& exec, const VendorShape& shape,
                                      const VendorEffort& effort) {
  using namespace gpu::sm90;
  const device::ProductLibrary& library = *exec.gpu->products;
  if (const Entry* entry = plans().find(&library, shape)) return entry->plan;
  Entry entry;
  entry.plan.shape = shape;
  try {
    entry.plan.library = library.path() + " " + library.version();
    Trial(exec, shape, effort).run(entry);
  } catch (const Error& e) {
    entry.choices = {};
    entry.plan.trials.clear();
    entry.plan.failure = e.what();
  }
  return plans().add(&library, std::move(entry)).plan;
}

}  // namespace rlk
