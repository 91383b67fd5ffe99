// Attention over keys and values in the blocks of a cache, against a loop over all keys.
#include <cmath>
#include <numeric>

#include "millrace/engine/ops/cuda/emulator/kernel_test.h"

namespace millrace::engine::cuda::emulator {
namespace {

struct Shape {
  std::int64_t heads, kv_heads, dim, block_tokens;
  bool causal;
  std::int64_t window;
  float softcap = 0;
  /// Not 1/sqrt(dim), which the kernels must not assume.
  float Scale() const { return 0.8F / std::sqrt(static_cast<float>(dim)); }
};
/// A sequence: tokens in the cache before this step, and tokens of the step. Without blocks, it is none.
struct Sequence {
  std::int64_t earlier, tokens;
  bool has_blocks = true;
};

/// Some sequences, whose blocks lie in no order in the cache.
class Batch {
 public:
  Batch(Element element, const Shape& shape, std::vector<Sequence> sequences)
      : element_(element), shape_(shape), sequences_(std::move(sequences)) {
    std::int64_t tokens = 0;
    for (const Sequence& sequence : sequences_) {
      bounds_.push_back(static_cast<std::int32_t>(tokens));
      for (std::int64_t i = 0; i < sequence.tokens; ++i)
        positions_.push_back(static_cast<std::int32_t>(sequence.earlier + i));
      tokens += sequence.tokens;
      width_ = std::max(width_, (sequence.earlier + sequence.tokens + shape.block_tokens - 1) / shape.block_tokens);
    }
    bounds_.push_back(static_cast<std::int32_t>(tokens));
    const auto count = static_cast<std::int64_t>(sequences_.size());
    blocks_ = count * width_ + 3;
    for (std::int64_t s = 0; s < count; ++s) {
      for (std::int64_t block = 0; block < width_; ++block) {
        const bool has = sequences_[static_cast<std::size_t>(s)].has_blocks;
        tables_.push_back(has ? static_cast<std::int32_t>((s * width_ + block) * 5 % blocks_) : -1);
      }
    }
    while (std::gcd(blocks_, 5) != 1) ++blocks_;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      if (tables_[i] >= 0) tables_[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 5 % blocks_);
    }
    const auto cached = static_cast<std::size_t>(blocks_ * shape.kv_heads * shape.block_tokens * shape.dim);
    keys_ = Rounded(element, Random(cached, 1, 1));
    values_ = Rounded(element, Random(cached, 1, 2));
    qkv_ = Rounded(element, Random(static_cast<std::size_t>(tokens * row()), 1, 3));
  }

  /// Stores the tokens of the step and attends. Returns keys, values and outputs, end to end.
  Numbers OnGpu(int multiprocessors) const {
    return InEveryOrder(
        [&] {
          Memory keys(element_, keys_), values(element_, values_), qkv(element_, qkv_), out(element_, outputs());
          const CachedSequences sequences{.bounds = bounds_.data(),
                                          .positions = positions_.data(),
                                          .tables = tables_.data(),
                                          .count = static_cast<std::int64_t>(sequences_.size()),
                                          .width = width_};
          const CacheBlocks cache{keys.data(), values.data(), shape_.kv_heads, shape_.block_tokens, shape_.dim};
          StoreInCache(element_, {qkv.data(), bounds_.back(), shape_.heads, sequences, cache}, nullptr);
          CachedAttentionArgs args{.qkv = qkv.data(),
                                   .out = out.data(),
                                   .heads = shape_.heads,
                                   .tokens = bounds_.back(),
                                   .sequences = sequences,
                                   .cache = cache,
                                   .causal = shape_.causal,
                                   .window = shape_.window,
                                   .scale = shape_.Scale(),
                                   .softcap = shape_.softcap};
          std::int64_t all = 0, longest = 0;
          for (const Sequence& sequence : sequences_) {
            args.most_tokens = std::max(args.most_tokens, sequence.tokens);
            all += sequence.earlier + sequence.tokens;
            longest = std::max(longest, sequence.earlier + sequence.tokens);
          }
          args.splits = DivideKeys(args, all, longest);
          Numbers scratch(static_cast<std::size_t>(CachedAttentionScratch(args)), NAN);
          args.scratch = scratch.data();
          CachedAttention(element_, args, nullptr);
          return Join(keys.values(), values.values(), out.values());
        },
        {.multiprocessors = multiprocessors});
  }

  Numbers Expected() const {
    Numbers keys = keys_, values = values_, out(outputs());
    const std::int64_t dim = shape_.dim, group = shape_.heads / shape_.kv_heads;
    const auto place = [&](std::size_t s, std::int64_t head, std::int64_t position) {
      const std::int64_t block =
          tables_[s * static_cast<std::size_t>(width_) + static_cast<std::size_t>(position / shape_.block_tokens)];
      return static_cast<std::size_t>(
          ((block * shape_.kv_heads + head) * shape_.block_tokens + position % shape_.block_tokens) * dim);
    };
    const auto of_token = [&](std::int64_t token, std::int64_t head) {
      return static_cast<std::size_t>(token * row() + head * dim);
    };
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      if (!sequences_[s].has_blocks) continue;
      const std::int64_t earlier = sequences_[s].earlier, length = earlier + sequences_[s].tokens;
      for (std::int64_t i = 0; i < sequences_[s].tokens; ++i) {
        for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
          const std::size_t to = place(s, head, earlier + i);
          for (std::size_t k = 0; k < static_cast<std::size_t>(dim); ++k) {
            keys[to + k] = qkv_[of_token(bounds_[s] + i, shape_.heads + head) + k];
            values[to + k] = qkv_[of_token(bounds_[s] + i, shape_.heads + shape_.kv_heads + head) + k];
          }
        }
      }
      for (std::int64_t i = 0; i < sequences_[s].tokens; ++i) {
        const std::int64_t position = earlier + i, end = shape_.causal ? position + 1 : length;
        const std::int64_t begin =
            shape_.causal && shape_.window > 0 ? std::max<std::int64_t>(0, position - shape_.window + 1) : 0;
        for (std::int64_t head = 0; head < shape_.heads; ++head) {
          std::vector<double> scores;
          for (std::int64_t key = begin; key < end; ++key) {
            const std::size_t from = place(s, head / group, key), query = of_token(bounds_[s] + i, head);
            double score = 0;
            for (std::size_t k = 0; k < static_cast<std::size_t>(dim); ++k)
              score += static_cast<double>(qkv_[query + k]) * keys[from + k];
            score *= shape_.Scale();
            if (shape_.softcap > 0) score = shape_.softcap * std::tanh(score / shape_.softcap);
            scores.push_back(std::exp(score));
          }
          const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
          for (std::size_t k = 0; k < static_cast<std::size_t>(dim); ++k) {
            double mixed = 0;
            for (std::int64_t key = begin; key < end; ++key)
              mixed += scores[static_cast<std::size_t>(key - begin)] * values[place(s, head / group, key) + k];
            out[static_cast<std::size_t>(((bounds_[s] + i) * shape_.heads + head) * dim) + k] =
                static_cast<float>(mixed / sum);
          }
        }
      }
    }
    return Join(keys, values, out);
  }

 private:
  std::int64_t row() const { return (shape_.heads + 2 * shape_.kv_heads) * shape_.dim; }
  std::size_t outputs() const { return static_cast<std::size_t>(bounds_.back() * shape_.heads * shape_.dim); }

  Element element_;
  Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<std::int32_t> bounds_, positions_, tables_;
  std::int64_t width_ = 1, blocks_ = 0;
  Numbers keys_, values_, qkv_;
};

class CachedAttentionKernels : public testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(Elements, CachedAttentionKernels, testing::ValuesIn(kElements));

TEST_P(CachedAttentionKernels, AttendToTheKeysOfTheirSequences) {
  for (const Shape& shape : {Shape{2, 2, 64, 32, true, 0}, Shape{4, 2, 32, 16, true, 0}, Shape{3, 3, 256, 32, true, 0},
                             Shape{8, 1, 80, 8, true, 5}, Shape{2, 2, 16, 32, false, 0}, Shape{6, 2, 128, 4, true, 100},
                             Shape{4, 2, 64, 16, true, 20, 2}}) {
    for (const std::vector<Sequence>& sequences :
         {std::vector<Sequence>{{0, 1}}, {{31, 1}, {200, 1}, {0, 1}}, {{5, 3}, {90, 4}, {40, 1, false}, {7, 2}}}) {
      for (const int multiprocessors : {1, 16}) {
        SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.dim << ", window " << shape.window
                                        << ", softcap " << shape.softcap << ", " << sequences.size() << " sequences, "
                                        << multiprocessors);
        const Batch batch(GetParam(), shape, sequences);
        ASSERT_TRUE(FitsCachedAttention(GetParam(), shape.dim));
        ExpectNear(batch.OnGpu(multiprocessors), batch.Expected(), ToleranceOf(GetParam()) / 4);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::engine::cuda::emulator
