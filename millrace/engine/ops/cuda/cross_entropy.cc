#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <functional>

#include "millrace/engine/errors.h"
#include "millrace/engine/ops/common/node.h"
#include "millrace/engine/ops/cuda/tensors/product.h"
#include "millrace/engine/ops/cuda/tensors/tensors.h"
#include "millrace/engine/ops/cuda_ops.h"
#include "millrace/engine/ops/product.h"

namespace millrace::engine::ops::cuda {
namespace {

/// Bytes of a chunk's logits, and rows that a chunk has at least: fewer would make products of bad shapes.
constexpr std::int64_t kChunkBytes = 512 << 20, kChunkRows = 2048;

/// The largest chunk. Of the whole vocabulary, so that ranks that divide it have the same chunks.
std::int64_t ChunkRows(std::int64_t vocab, std::int64_t element_size) {
  return std::max(kChunkRows, kChunkBytes / (vocab * element_size) / 128 * 128);
}

/// Writes the losses [n] of a chunk's logits, in float64, and with `gradient` the gradients over the logits. `correct`
/// [n] (int32) may be undefined.
struct LogitChunk {
  at::Tensor logits, labels, losses, correct;
  bool gradient;
};
using RowLosses = std::function<void(const LogitChunk&)>;

kernels::CrossEntropyArgs ArgsOf(const LogitChunk& chunk, const LossOptions& options, std::int64_t first_column,
                                 std::int64_t vocab) {
  return {.logits = chunk.logits.data_ptr(),
          .stride = chunk.logits.stride(0),
          .labels = MemoryOf<std::int64_t>(chunk.labels),
          .rows = chunk.logits.size(0),
          .columns = chunk.logits.size(1),
          .first_column = first_column,
          .vocab = vocab,
          .ignored = kIgnoreLabel,
          .label_smoothing = static_cast<float>(options.label_smoothing),
          .z_loss = static_cast<float>(options.z_loss)};
}

RowLosses OfWholeRows(const LossOptions& options) {
  return [options](const LogitChunk& chunk) {
    kernels::CrossEntropy(ElementOf(chunk.logits), ArgsOf(chunk, options, 0, chunk.logits.size(1)), chunk.gradient,
                          MemoryOf<double>(chunk.losses), MemoryOf<std::int32_t>(chunk.correct),
                          StreamOf(chunk.logits));
  };
}

/// The logits have this rank's share of `vocab` columns. The ranks exchange by way of the CPU.
RowLosses OfDividedRows(const LossOptions& options, std::int64_t vocab, const TensorRanks& ranks) {
  return [options, vocab, ranks](const LogitChunk& chunk) {
    const kernels::CrossEntropyArgs args = ArgsOf(chunk, options, ranks.ShareOf(vocab).first, vocab);
    const kernels::Element element = ElementOf(chunk.logits);
    const at::Tensor partial = NewLike(chunk.logits, {args.rows, 3}, at::kFloat);
    static_assert(sizeof(cpu::PartialSoftmax) == 3 * sizeof(float));
    kernels::CrossEntropyScan(element, args, MemoryOf<cpu::PartialSoftmax>(partial), StreamOf(partial));
    const at::Tensor all = at::empty({ranks.size(), args.rows, 3}, at::kFloat), mine = all[ranks.rank()];
    mine.copy_(partial);
    ThrowIfFailed(ranks.group->AllGather(all, mine));
    const at::Tensor each = OnDevice(all, partial.device());
    const at::Tensor most = each.select(2, 0).amax(0).to(at::kDouble);
    const at::Tensor sums = each.select(2, 1).to(at::kDouble) * at::exp(each.select(2, 0).to(at::kDouble) - most);
    const at::Tensor lse = at::log(sums.sum(0)) + most, own = each.select(2, 2).to(at::kDouble).sum(0);
    const at::Tensor ignored = chunk.labels.eq(kIgnoreLabel);
    at::Tensor losses = chunk.losses, correct = chunk.correct;
    losses.copy_((lse - own).masked_fill(ignored, 0));
    if (correct.defined()) correct.copy_(own.ge(most).logical_and(ignored.logical_not()));
    if (!chunk.gradient) return;
    const at::Tensor shift = lse.to(at::kFloat);
    kernels::CrossEntropyGradient(element, args, MemoryOf<float>(shift), StreamOf(shift));
  };
}

struct HeadGradients {
  at::Tensor losses;            ///< float64, one of each row
  at::Tensor dx, dhead, dbias;  ///< undefined unless asked for; dhead and dbias are float32
  at::Tensor dinner, dup;       ///< of the update; dup is float32
  at::Tensor correct;           ///< int32, one of each row; undefined unless asked for
};

/// Returns the matrix or vector with zeros behind it up to `rows` rows.
at::Tensor Padded(const at::Tensor& x, std::int64_t rows) {
  if (!x.defined() || x.size(0) == rows) return x;
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  at::Tensor padded = at::zeros(sizes, x.options());
  padded.narrow(0, 0, x.size(0)).copy_(x);
  return padded;
}

/// The matrices that make the logits, all of one type and on one device. What a head does not have is undefined.
struct HeadMatrices {
  at::Tensor x, head, bias, inner, up;
  std::int64_t columns = 0;  ///< of the logits that count

  /// Returns the same with as many logits as fill vectors of 16 bytes: of other sizes, cuBLAS makes products several
  /// times as slowly. The copy of the head costs little beside one of them.
  HeadMatrices WithWholeVectors() const {
    const std::int64_t together = 16 / x.element_size(), rows = (columns + together - 1) / together * together;
    return {x, Padded(head, rows), Padded(bias, rows), inner, Padded(up, rows), columns};
  }
  /// Returns logits [count, rows of the head].
  at::Tensor Logits(std::int64_t begin, std::int64_t count) const {
    at::Tensor logits = ops::Product(x.narrow(0, begin, count), head.t(), bias);
    if (!inner.defined()) return logits;
    const at::Tensor part = inner.narrow(0, begin, count);
    if (logits.scalar_type() == at::kFloat) {
      ops::AddProduct(logits, part, up.t());
    } else {
      logits.add_(ops::Product(part, up.t()));
    }
    return logits;
  }
};

/// Which gradients to compute. x: also that of an update's inner products.
struct Wanted {
  bool x = false, head = false, bias = false, up = false, correct = false;
};

HeadGradients InChunks(const HeadMatrices& given, const at::Tensor& labels, std::int64_t vocab, const Wanted& wanted,
                       double softcap, const RowLosses& losses) {
  const HeadMatrices matrices = given.WithWholeVectors();
  const auto& [x, head, bias, inner, up, columns] = matrices;
  const std::int64_t rows = x.size(0);
  const auto floats = [](const at::Tensor& like) { return NewLike(like, like.sizes(), at::kFloat); };
  HeadGradients result;
  if (wanted.x) result.dx = at::empty_like(x);
  if (wanted.head) result.dhead = floats(head);
  if (wanted.bias) result.dbias = floats(bias).zero_();
  if (wanted.x && inner.defined()) result.dinner = at::empty_like(inner);
  if (wanted.up) result.dup = floats(up);
  result.losses = NewLike(x, {rows}, at::kDouble);
  if (wanted.correct) result.correct = NewLike(x, {rows}, at::kInt);
  if (rows == 0 && result.dhead.defined()) result.dhead.zero_();
  if (rows == 0 && result.dup.defined()) result.dup.zero_();
  const std::int64_t most = ChunkRows(vocab, x.element_size());
  const std::int64_t chunks = std::max<std::int64_t>(1, (rows + most - 1) / most), each = (rows + chunks - 1) / chunks;
  for (std::int64_t begin = 0; begin < rows; begin += each) {
    const std::int64_t count = std::min(each, rows - begin);
    const at::Tensor logits = matrices.Logits(begin, count), part = x.narrow(0, begin, count);
    at::Tensor capped = logits.narrow(1, 0, columns), slopes;
    if (softcap > 0) {
      capped.div_(softcap).tanh_();
      if (wanted.x) slopes = 1 - capped.square();
      capped.mul_(softcap);
    }
    losses({.logits = capped,
            .labels = labels.narrow(0, begin, count),
            .losses = result.losses.narrow(0, begin, count),
            .correct = wanted.correct ? result.correct.narrow(0, begin, count) : at::Tensor(),
            .gradient = wanted.x});
    if (!wanted.x) continue;
    if (slopes.defined()) capped.mul_(slopes);  // the gradients of the logits, by now
    ProductInto(result.dx.narrow(0, begin, count), logits, head);
    const auto sum = [&](const at::Tensor& into, const at::Tensor& of) {
      if (!into.defined()) return;
      if (begin == 0) {
        SetProduct(into, logits.t(), of);
      } else {
        AddProduct(into, logits.t(), of, 1);
      }
    };
    sum(result.dhead, part);
    if (result.dbias.defined()) AddOrReturnRowSum({.value = result.dbias, .gradient = result.dbias}, logits);
    if (result.dinner.defined()) ProductInto(result.dinner.narrow(0, begin, count), logits, up);
    if (result.dup.defined()) sum(result.dup, inner.narrow(0, begin, count));
  }
  for (at::Tensor* gradient : {&result.dhead, &result.dbias, &result.dup}) {
    if (gradient->defined()) *gradient = gradient->narrow(0, 0, columns);
  }
  return result;
}

/// The losses of the rows that reach the head: those with a label or, if the labels are on the GPU, all of them.
struct HeadRows {
  at::Tensor kept;  ///< their numbers, on the GPU; undefined: all
  std::int64_t rows = 0;
  HeadGradients result;

  /// Returns a tensor of all rows from one of those that reach the head.
  at::Tensor Spread(const at::Tensor& some) const {
    if (!kept.defined() || !some.defined()) return some;
    std::vector<std::int64_t> sizes = some.sizes().vec();
    sizes[0] = rows;
    return at::zeros(sizes, some.options()).index_copy_(0, kept, some);
  }
};

void CheckLabels(const at::Tensor& labels, std::int64_t vocab) {
  const auto* label = labels.data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < labels.numel(); ++row) {
    TORCH_CHECK(label[row] >= 0 && label[row] < vocab, "label ", label[row], " is not one of ", vocab, ", 0 to ",
                vocab - 1);
  }
}

HeadRows RowsOf(const at::Tensor& x, const Weight& head, const Weight& bias, const HeadUpdate& update,
                const at::Tensor& labels, std::int64_t vocab, Wanted wanted, double softcap, const RowLosses& losses) {
  const at::NoGradGuard no_grad;
  HeadRows of{.rows = x.size(0)};
  at::Tensor of_kept = labels;
  if (labels.device().is_cpu()) {
    const at::Tensor kept = at::nonzero(labels != kIgnoreLabel).view({-1});
    if (kept.numel() < labels.numel()) {
      of_kept = labels.index_select(0, kept);
      of.kept = OnDevice(kept, x.device());
    }
    of_kept = of_kept.contiguous();
    CheckLabels(of_kept, vocab);
  }
  const auto rows = [&](const at::Tensor& each) {
    return each.defined() && of.kept.defined() ? each.index_select(0, of.kept) : Dense(each);
  };
  const auto weight = [&](const Weight& each) {
    return each.defined() ? each.value.detach().to(x.scalar_type()) : at::Tensor();
  };
  const HeadMatrices matrices{
      .x = rows(x.detach()),
      .head = weight(head),
      .bias = weight(bias),
      .inner = update.inner.defined() ? rows(update.inner.detach().to(x.scalar_type())) : at::Tensor(),
      .up = weight(update.up),
      .columns = head.value.size(0)};
  of.result = InChunks(matrices, OnDevice(of_kept, x.device()).contiguous(), vocab, wanted, softcap, losses);
  return of;
}

/// As ops::AddOrReturn, with a factor on the GPU.
at::Tensor AddOrReturnScaled(const Weight& weight, const at::Tensor& gradient, const at::Tensor& factor) {
  if (!gradient.defined() || (!weight.gradient.defined() && !weight.autograd_adds())) return {};
  if (!weight.gradient.defined()) return (gradient * factor).to(weight.value.scalar_type());
  at::Tensor into = weight.gradient;
  into.addcmul_(gradient, factor);
  return {};
}

at::Tensor SumOfLosses(const at::Tensor& x, const Weight& head, const Weight& bias, const HeadUpdate& update,
                       const at::Tensor& labels, std::int64_t vocab, std::int64_t* correct, double softcap,
                       const RowLosses& losses) {
  const c10::cuda::CUDAGuard guard(x.device());
  const TensorList inputs{x, head.value, bias.value, update.inner, update.up.value};
  const bool recording = Recording(inputs);
  const auto is_wanted = [&](const Weight& weight) {
    return recording && weight.defined() && weight.value.requires_grad();
  };
  HeadRows of = RowsOf(x, head, bias, update, labels, vocab,
                       {.x = recording,
                        .head = is_wanted(head),
                        .bias = is_wanted(bias),
                        .up = is_wanted(update.up),
                        .correct = correct != nullptr},
                       softcap, losses);
  if (correct != nullptr) *correct += of.result.correct.sum().item<std::int64_t>();
  at::Tensor loss = of.result.losses.sum().to(at::kFloat);
  if (!recording) return loss;
  Connect(
      "LinearCrossEntropy", inputs, {loss}, [head, bias, up = update.up, of = std::move(of)](TensorList&& gradients) {
        const HeadGradients& each = of.result;
        const c10::cuda::CUDAGuard on_device(each.losses.device());
        const at::Tensor factor = OnDevice(gradients[0].to(at::kFloat), each.losses.device());
        const auto scaled = [&](const at::Tensor& rows) {
          if (!rows.defined()) return rows;
          kernels::Scale(ElementOf(rows), MemoryOf(rows), rows.numel(), MemoryOf<float>(factor), StreamOf(rows));
          return of.Spread(rows);
        };
        return TensorList{scaled(each.dx), AddOrReturnScaled(head, each.dhead, factor),
                          bias.defined() ? AddOrReturnScaled(bias, each.dbias, factor) : at::Tensor(),
                          scaled(each.dinner), up.defined() ? AddOrReturnScaled(up, each.dup, factor) : at::Tensor()};
      });
  return loss;
}

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                              const LossOptions& options, std::int64_t* correct, const HeadUpdate& update,
                              double softcap) {
  return SumOfLosses(x, head, bias, update, labels, head.value.size(0), correct, softcap, OfWholeRows(options));
}

at::Tensor DividedCrossEntropy(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, const LossOptions& options,
                               std::int64_t* correct, const HeadUpdate& update, double softcap) {
  return SumOfLosses(x, head, bias, update, labels, vocab, correct, softcap, OfDividedRows(options, vocab, ranks));
}

/// The gradient of a token's loss over x is there from the forward pass. So the backward pass only scales the rows.
at::Tensor TokenCrossEntropies(const at::Tensor& x, const Weight& head, const Weight& bias, const at::Tensor& labels,
                               std::int64_t vocab, const TensorRanks& ranks, double softcap) {
  TORCH_CHECK(!head.value.requires_grad() && !(bias.defined() && bias.value.requires_grad()),
              "losses of single tokens need a frozen head");
  const c10::cuda::CUDAGuard guard(x.device());
  const bool recording = Recording({x});
  HeadRows of = RowsOf(x, head, bias, {}, labels, vocab, {.x = recording}, softcap,
                       ranks.size() == 1 ? OfWholeRows({}) : OfDividedRows({}, vocab, ranks));
  at::Tensor losses = of.Spread(of.result.losses);
  if (!recording) return losses;
  if (!of.kept.defined()) losses = losses.detach();
  Connect("TokenCrossEntropies", {x}, {losses}, [of = std::move(of)](TensorList&& gradients) {
    const at::Tensor& dx = of.result.dx;
    const at::Tensor all = OnDevice(gradients[0], dx.device());
    const at::Tensor scales = (of.kept.defined() ? all.index_select(0, of.kept) : all).to(at::kFloat).unsqueeze(1);
    return TensorList{of.Spread((dx * scales).to(dx.scalar_type()))};
  });
  return losses;
}

}  // namespace millrace::engine::ops::cuda
