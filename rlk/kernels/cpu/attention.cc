#include "rlk/kernels/attention.h"

#include <algorithm>
#include <utility>

#include "rlk/core/error.h"
#include "rlk/kernels/cpu/attention_plan.h"
#include "rlk/kernels/cpu/attention_rows.h"
#include "rlk/kernels/cpu/columns.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/softmax_scale.h"

namespace rlk::cpu {
namespace {

// One call of forward: what every task reads.
template <typename T>
struct Call {
  Exec& exec;
  const AttentionArgs& args;
  const AttentionIsa<T>& isa;
  const AttentionPlan& plan;
};

// The tile of one KV head.
struct Head {
  AttentionTile tile;
  float* q;
  SoftmaxState total;
  SoftmaxState split;
};

// Scratch of one thread.
template <typename T>
struct Scratch {
  Head* heads;        // [task_heads]
  const T** k;        // [kv_block], rows of the first head
  const T** v;        // [kv_block]
  const T** ahead_k;  // [kv_block], rows of the next block
  const T** ahead_v;  // [kv_block]
  int* visible;       // [tile_rows]
  const T** q_rows;   // [tile_rows]
  T** y_rows;         // [tile_rows]
  float* lse;         // [tile_rows]
};

SoftmaxState take_state(Workspace::Frame& frame, std::int64_t rows, std::int64_t ld) {
  return {frame.take<float>(rows), frame.take<float>(rows), frame.take<float>(rows * ld)};
}

template <typename T>
Scratch<T> take_scratch(Workspace::Frame& frame, const AttentionPlan& plan,
                        const numerics::mma::ColumnsIsa* model) {
  const std::int64_t rows = padded(plan.tile_rows());
  const std::int64_t keys = padded(std::min(plan.kv_len_max, plan.kv_block));
  AttentionTile tile{};
  tile.model = model;
  tile.d = plan.d;
  tile.ld = static_cast<int>(leading(plan.d));
  tile.c = reference::log2e_over_sqrt(plan.d);
  tile.lds = leading(keys);
  tile.kt = frame.take<float>(plan.d * tile.lds);
  tile.v = frame.take<float>(keys * tile.ld);
  tile.s = frame.take<float>(std::min<std::int64_t>(rows, kAttentionRows) * tile.lds);

  Scratch<T> s;
  s.heads = frame.take<Head>(plan.task_heads);
  for (std::int64_t h = 0; h < plan.task_heads; ++h) {
    Head& head = s.heads[h];
    head.tile = tile;
    head.tile.q = head.q = frame.take<float>(rows * tile.ld);
    head.tile.lanes = frame.take<float>(rows * kSoftmaxLanes);
    head.tile.fault = frame.take<int>(rows);
    head.total = take_state(frame, rows, tile.ld);
    head.split = take_state(frame, rows, tile.ld);
  }
  s.k = frame.take<const T*>(keys);
  s.v = frame.take<const T*>(keys);
  s.ahead_k = frame.take<const T*>(keys);
  s.ahead_v = frame.take<const T*>(keys);
  s.visible = frame.take<int>(rows);
  s.q_rows = frame.take<const T*>(rows);
  s.y_rows = frame.take<T*>(rows);
  s.lse = frame.take<float>(rows);
  return s;
}

// The rows of k and v that hold positions [begin, end) of sequence s.
template <typename T>
void find_kv(const KvView& kv, std::int64_t s, std::int64_t kv_head, std::int64_t begin,
             std::int64_t end, const T** k, const T** v) {
  for (std::int64_t i = 0; begin < end;) {
    std::int64_t row;
    std::int64_t run_end = end;
    if (kv.block_table) {
      const std::int64_t page = begin / kv.page_size;
      const std::int64_t in_page = begin % kv.page_size;
      row = *kv.block_table.at<std::int32_t>(s, page) * kv.page_size + in_page;
      run_end = std::min(end, begin - in_page + kv.page_size);
    } else {
      row = *kv.kv_start.at<std::int32_t>(s) + begin;
    }
    for (; begin < run_end; ++begin, ++i, ++row) {
      k[i] = row_at<T>(kv.k, row, kv_head);
      v[i] = row_at<T>(kv.v, row, kv_head);
    }
  }
}

// Sets scratch.visible to the keys in [begin, begin + n) that each row sees; returns the first row
// that sees one.
template <typename T>
int find_visible(const AttentionPlan& plan, const Queries& at, std::int64_t begin, std::int64_t n,
                 Scratch<T>& scratch) {
  int first = 0;
  int* visible = scratch.visible;
  for (std::int64_t i = 0; i < at.queries; ++i) {
    const std::int64_t seen = std::clamp<std::int64_t>(at.position + i + 1 - begin, 0, n);
    if (seen == 0) first += static_cast<int>(plan.group);
    visible = std::fill_n(visible, plan.group, static_cast<int>(seen));
  }
  return first;
}

// One block for every head of the task in turn. Meanwhile the next block, all heads of a position
// together as they lie, comes closer: a slice of it during each head. state(h) is the state of head
// h of the task.
template <typename T, typename StateOf>
void run_block(const Call<T>& call, const Queries& at, std::int64_t block, const StateOf& state,
               Scratch<T>& scratch) {
  const AttentionPlan& plan = call.plan;
  const KvView& kv = call.args.kv;
  const std::int64_t block_end = std::min(block + plan.kv_block, at.end());
  const std::int64_t next_end = std::min(block_end + plan.kv_block, at.end());
  const std::int64_t ahead = std::max<std::int64_t>(0, next_end - block_end);
  const int n = static_cast<int>(block_end - block);
  const int first = find_visible(plan, at, block, n, scratch);
  find_kv(kv, at.sequence, at.first_head, block, block_end, scratch.k, scratch.v);
  find_kv(kv, at.sequence, at.first_head, block_end, next_end, scratch.ahead_k, scratch.ahead_v);
  for (std::int64_t h = 0; h < at.heads(); ++h) {
    const std::int64_t slice = ahead * h / at.heads();
    call.isa.add_block(scratch.heads[h].tile, state(h), first,
                       {{scratch.k, h * kv.k.stride(1)},
                        {scratch.v, h * kv.v.stride(1)},
                        n,
                        scratch.visible,
                        scratch.ahead_k + slice,
                        scratch.ahead_v + slice,
                        static_cast<int>(ahead * (h + 1) / at.heads() - slice),
                        static_cast<int>(at.heads() * plan.d)});
  }
}

template <typename T, typename StateOf>
void run_split(const Call<T>& call, const Queries& at, std::int64_t split, const StateOf& state,
               Scratch<T>& scratch) {
  const std::int64_t split_end = std::min(split + call.plan.kv_split, at.end());
  const int first = find_visible(call.plan, at, split, 1, scratch);
  for (std::int64_t h = 0; h < at.heads(); ++h) {
    call.isa.begin_split(scratch.heads[h].tile, state(h), first);
  }
  for (std::int64_t block = split; block < split_end; block += call.plan.kv_block) {
    run_block(call, at, block, state, scratch);
  }
  for (std::int64_t h = 0; h < at.heads(); ++h) {
    call.isa.end_split(scratch.heads[h].tile, state(h), first);
  }
}

template <typename T>
void begin_tile(const Call<T>& call, const Queries& at, Scratch<T>& scratch) {
  const std::int64_t group = call.plan.group;
  for (std::int64_t h = 0; h < at.heads(); ++h) {
    Head& head = scratch.heads[h];
    head.tile.rows = static_cast<int>(at.queries * group);
    for (std::int64_t r = 0; r < head.tile.rows; ++r) {
      scratch.q_rows[r] =
          row_at<T>(call.args.q, at.token + r / group, (at.first_head + h) * group + r % group);
      head.tile.fault[r] = 0;
    }
    call.isa.widen_rows(head.q, head.tile.ld, {scratch.q_rows, 0}, head.tile.rows, call.plan.d);
  }
}

template <typename T>
void report_faults(const Call<T>& call, const Queries& at, const Scratch<T>& scratch) {
  const std::int64_t group = call.plan.group;
  for (std::int64_t h = 0; h < at.heads(); ++h) {
    const AttentionTile& tile = scratch.heads[h].tile;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      if (!tile.fault[r]) continue;
      call.exec.fault.report((at.token + r / group) * group * call.plan.kv_heads +
                             (at.first_head + h) * group + r % group);
    }
  }
}

// The left fold of the splits after the first onto it; state(h, split) is that of head h.
template <typename T, typename StateOf>
void fold_split(const Call<T>& call, const Queries& at, std::int64_t split, const StateOf& state,
                Scratch<T>& scratch) {
  const int first = find_visible(call.plan, at, split, 1, scratch);
  for (std::int64_t h = 0; h < at.heads(); ++h) {
    call.isa.fold(scratch.heads[h].tile, state(h, 0), state(h, split), first);
  }
}

template <typename T, typename StateOf>
void end_tile(const Call<T>& call, const Queries& at, const StateOf& state, Scratch<T>& scratch) {
  const std::int64_t group = call.plan.group;
  for (std::int64_t h = 0; h < at.heads(); ++h) {
    const AttentionTile& tile = scratch.heads[h].tile;
    const std::int64_t first_head = (at.first_head + h) * group;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      scratch.y_rows[r] = row_at<T>(call.args.y, at.token + r / group, first_head + r % group);
    }
    call.isa.finish(tile, state(h), scratch.y_rows, scratch.lse);
    if (!call.args.lse) continue;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      *call.args.lse.template at<float>(at.token + r / group, first_head + r % group) =
          scratch.lse[r];
    }
  }
}

// A task is a part of a tile with all its splits, folded one by one.
template <typename T>
void run_tiles(const Call<T>& call, Scratch<T>* scratch) {
  const std::int64_t parts = call.plan.parts();
  const std::int64_t tasks = call.plan.tiles() * parts;
  call.exec.pool.parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
    Scratch<T>& s = scratch[thread];
    const auto state = [&](std::int64_t h, std::int64_t split) {
      return split == 0 ? s.heads[h].total : s.heads[h].split;
    };
    for (std::int64_t task = begin; task < end; ++task) {
      // Late tiles of a sequence see most keys: they start first, so that none is left at the end.
      const std::int64_t reversed = tasks - 1 - task;
      const Queries at = call.plan.queries(call.args, reversed / parts, reversed % parts);
      begin_tile(call, at, s);
      for (std::int64_t split = 0; split < at.end(); split += call.plan.kv_split) {
        run_split(
            call, at, split, [&](std::int64_t h) { return state(h, split); }, s);
        if (split > 0) fold_split(call, at, split, state, s);
      }
      report_faults(call, at, s);
      end_tile(
          call, at, [&](std::int64_t h) { return state(h, 0); }, s);
    }
  });
}

// A task is one split of a part of a tile. The states of all splits are kept until they are folded,
// in order, whoever computed them.
template <typename T>
void run_splits(const Call<T>& call, Scratch<T>* scratch) {
  const AttentionPlan& plan = call.plan;
  const std::int64_t tiles = plan.tiles();
  const std::int64_t splits_max = plan.splits_max();
  const std::int64_t parts = plan.parts();
  const std::int64_t rows = padded(plan.tile_rows());
  const std::int64_t ld = leading(plan.d);
  Workspace::Frame frame(call.exec.workspace);
  const SoftmaxState all = take_state(frame, tiles * plan.kv_heads * splits_max * rows, ld);
  const auto state = [&](const Queries& at, std::int64_t h, std::int64_t split) {
    const std::int64_t first =
        ((at.tile * plan.kv_heads + at.first_head + h) * splits_max + split / plan.kv_split) * rows;
    return SoftmaxState{all.m + first, all.l + first, all.o + first * ld};
  };
  call.exec.pool.parallel_for(
      tiles * parts * splits_max, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        for (std::int64_t task = begin; task < end; ++task) {
          const std::int64_t split = task % splits_max * plan.kv_split;
          const std::int64_t part = task / splits_max;
          const Queries at = plan.queries(call.args, part / parts, part % parts);
          if (split >= at.end()) continue;
          begin_tile(call, at, scratch[thread]);
          run_split(
              call, at, split, [&](std::int64_t h) { return state(at, h, split); },
              scratch[thread]);
          report_faults(call, at, scratch[thread]);
        }
      });
  call.exec.pool.parallel_for(
      tiles * plan.kv_heads, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
        Scratch<T>& s = scratch[thread];
        for (std::int64_t i = begin; i < end; ++i) {
          Queries at = plan.queries(call.args, i / plan.kv_heads, 0);
          at.first_head = i % plan.kv_heads;
          at.last_head = at.first_head + 1;
          s.heads[0].tile.rows = static_cast<int>(at.queries * plan.group);
          const auto state_of = [&](std::int64_t h, std::int64_t split) {
            return state(at, h, split);
          };
          for (std::int64_t split = plan.kv_split; split < at.end(); split += plan.kv_split) {
            fold_split(call, at, split, state_of, s);
          }
          end_tile(
              call, at, [&](std::int64_t h) { return state(at, h, 0); }, s);
        }
      });
}

template <typename T>
void forward(Exec& exec, const AttentionArgs& args, Isa level) {
  Workspace::Frame frame(exec.workspace);
  const AttentionPlan plan(exec, args, frame);
  const std::int64_t threads = exec.pool.num_threads();
  Scratch<T>* scratch = frame.take<Scratch<T>>(threads);
  for (std::int64_t i = 0; i < threads; ++i) {
    scratch[i] = take_scratch<T>(frame, plan, columns_isa(level, exec.contract.profile));
  }
  const Call<T> call{exec, args, attention_isa<T>(level), plan};
  plan.by_split ? run_splits(call, scratch) : run_tiles(call, scratch);
}

}  // namespace

const AttentionTables& attention_tables(Isa isa) {
  switch (isa) {
    case Isa::kAvx2: return kAttentionAvx2;
    case Isa::kAvx512: return kAttentionAvx512;
    default: return kAttentionScalar;
  }
}

template <Isa I>
void attention(Exec& exec, const AttentionArgs& args) {
  with_storage(args.q.dtype, [&]<typename T>() { forward<T>(exec, args, I); });
}

RLK_INSTANTIATE(attention, AttentionArgs);

}  // namespace rlk::cpu
