#include "rlk/kernels/cpu/logprob_rows.h"
#include "rlk/kernels/cpu/storage.h"
#include "rlk/kernels/cpu/table.h"
#include "rlk/kernels/reference/table.h"
#include "rlk/kernels/reference/token_filter.h"
#include "rlk/numerics/sums.h"

namespace rlk::cpu {
namespace {

void gradient(const LogprobIsa& isa, std::uint16_t* dz, const float* dy, float sum, float scale,
              const LogitPiece& piece, const LogitRowEnd& row) {
  isa.log_softmax_gradient_bf16(dz, dy, sum, scale, piece, row);
}
void gradient(const LogprobIsa& isa, float* dz, const float* dy, float sum, float scale,
              const LogitPiece& piece, const LogitRowEnd& row) {
  isa.log_softmax_gradient_f32(dz, dy, sum, scale, piece, row);
}

}  // namespace

template <Isa I>
void log_softmax(Exec& exec, const LogSoftmaxArgs& args) {
  if (!dense(1, args.logits, args.y)) return reference::log_softmax(exec, args);
  const LogprobIsa& isa = logprob_isa(I);
  LogprobRows rows(exec, isa, args.logits, args.params, args.num_params, 0.6);
  rows.for_each([&](std::int64_t t, LogprobRow& row) {
    row.read(t, params_of(args.params, args.num_params, t));
    RowState state;
    if (!row.valid || !row.find_state(false, &state)) return exec.fault.report(t);
    float* y = args.y.at<float>(t);
    row.for_each_piece([&](std::int64_t, const LogitPiece& piece) {
      isa.log_softmax(y + piece.first_id, piece, state.end);
    });
  });
}

template <Isa I>
void log_softmax_backward(Exec& exec, const LogSoftmaxBackwardArgs& args) {
  const std::int64_t lanes = exec.contract.norm_lanes;
  if (!dense(1, args.logits, args.dy, args.dlogits) || lanes < 16) {
    return reference::log_softmax_backward(exec, args);
  }
  const LogprobIsa& isa = logprob_isa(I);
  LogprobRows rows(exec, isa, args.logits, args.params, args.num_params, 1.1);
  with_storage(args.dlogits.dtype, [&]<typename T>() {
    rows.for_each([&](std::int64_t t, LogprobRow& row) {
      T* dz = args.dlogits.at<T>(t);
      const float* dy = args.dy.at<float>(t);
      const SamplingParams& params = params_of(args.params, args.num_params, t);
      row.read(t, params);
      RowState state;
      bool ok = row.valid && row.find_state(false, &state);
      float sum = 0.0f;
      if (ok) {
        // One thread: a lane goes through all pieces.
        alignas(64) float lane[numerics::kMaxLanes] = {};
        for (std::int64_t begin = 0; begin < row.vocab_size; begin += kPieceColumns) {
          isa.lane_sums(lane, lanes, dy + begin, row.piece(begin));
        }
        sum = numerics::neighbour_tree(lane, static_cast<int>(lanes));
        ok = numerics::is_finite(sum);
      }
      if (!ok) {
        std::fill_n(dz, args.dlogits.shape(1), T{0});
        return exec.fault.report(t);
      }
      const float scale = reference::inverse_temperature(params);
      row.for_each_piece([&](std::int64_t, const LogitPiece& piece) {
        gradient(isa, dz + piece.first_id, dy + piece.first_id, sum, scale, piece, state.end);
      });
      std::fill(dz + row.vocab_size, dz + args.dlogits.shape(1), T{0});
    });
  });
}

RLK_INSTANTIATE(log_softmax, LogSoftmaxArgs);
RLK_INSTANTIATE(log_softmax_backward, LogSoftmaxBackwardArgs);

}  // namespace rlk::cpu
