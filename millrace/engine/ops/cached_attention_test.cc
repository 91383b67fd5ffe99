#include "millrace/engine/ops/cached_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "millrace/engine/ops/common/step_kernels.h"

namespace millrace::engine::ops {
namespace {

constexpr std::int64_t kBlocks = 40, kBlockTokens = 32;

struct PagedCase {
  HeadLayout layout;
  AttentionRule rule;
  at::ScalarType type;
  bool int8 = false;  ///< the cache
};

/// One sequence in a cache: its rows of queries, keys and values, and its blocks.
struct CachedText {
  at::Tensor qkv;
  std::vector<std::int32_t> blocks;
  std::int64_t stored = 0;
};

class AttendBlocksTest : public ::testing::TestWithParam<PagedCase> {
 protected:
  const PagedCase& c() const { return GetParam(); }
  CachedLayer Layer() const {
    const CachedLayer layer = MakeCachedLayer(kBlocks, c().layout.kv_heads, kBlockTokens, c().layout.head_dim,
                                              at::TensorOptions(c().int8 ? at::kChar : c().type));
    // What nobody stored must not reach a result.
    if (c().int8) {
      layer.key_scales.fill_(std::numeric_limits<double>::quiet_NaN());
      layer.value_scales.fill_(std::numeric_limits<double>::quiet_NaN());
      return layer;
    }
    layer.keys.fill_(std::numeric_limits<double>::quiet_NaN());
    layer.values.fill_(std::numeric_limits<double>::quiet_NaN());
    return layer;
  }
  /// Texts of these lengths, with blocks in a random order.
  std::vector<CachedText> Texts(std::vector<std::int64_t> lengths, std::uint64_t seed) const {
    std::vector<std::int32_t> free(kBlocks);
    std::iota(free.begin(), free.end(), 0);
    std::ranges::shuffle(free, std::mt19937_64(seed));
    const auto generator = at::detail::createCPUGenerator(seed);
    std::vector<CachedText> texts;
    for (const std::int64_t length : lengths) {
      CachedText text{.qkv = at::randn({length, c().layout.columns()}, generator).to(c().type)};
      for (std::int64_t have = 0; have < length; have += kBlockTokens) {
        text.blocks.push_back(free.back());
        free.pop_back();
      }
      texts.push_back(std::move(text));
    }
    return texts;
  }
  /// Stores the next `counts` tokens of the texts, and returns the attention of each text's tokens.
  std::vector<at::Tensor> Advance(std::vector<CachedText>& texts, const std::vector<std::size_t>& which,
                                  const std::vector<std::int64_t>& counts, const CachedLayer& layer) const {
    std::vector<at::Tensor> rows;
    std::vector<std::int64_t> past;
    BlockTables tables;
    for (std::size_t i = 0; i < which.size(); ++i) {
      CachedText& text = texts[which[i]];
      rows.push_back(text.qkv.narrow(0, text.stored, counts[i]));
      past.push_back(text.stored);
      tables.Add(text.blocks);
      text.stored += counts[i];
    }
    const Sequences sequences = Sequences::Following(counts, past);
    tables.Check(sequences, kBlockTokens, kBlocks);
    const at::Tensor out = AttendBlocks(at::cat(rows), c().layout, sequences, layer, tables, c().rule);
    return out.split_with_sizes(counts);
  }
};

TEST_P(AttendBlocksTest, EachTextAttendsAsWithoutACache) {
  for (const bool plain : {false, true}) {
    if (plain && c().int8) continue;  // only the fused kernels read codes
    const StepKernels kernels{.plain = plain};
    const KernelScope scope(kernels);
    const CachedLayer layer = Layer();
    std::vector<CachedText> texts = Texts({70, 33, 1, 96}, 3);
    std::vector<at::Tensor> got(texts.size());
    std::mt19937_64 random(5);
    for (;;) {
      std::vector<std::size_t> which;
      std::vector<std::int64_t> counts;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const std::int64_t left = texts[i].qkv.size(0) - texts[i].stored;
        if (left == 0 || random() % 4 == 0) continue;
        which.push_back(i);
        counts.push_back(
            random() % 2 == 0 ? 1 : 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(left)));
      }
      if (std::ranges::all_of(texts, [](const CachedText& text) { return text.stored == text.qkv.size(0); })) break;
      if (which.empty()) continue;
      const std::vector<at::Tensor> parts = Advance(texts, which, counts, layer);
      for (std::size_t i = 0; i < which.size(); ++i) {
        at::Tensor& all = got[which[i]];
        all = all.defined() ? at::cat({all, parts[i]}) : parts[i];
      }
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const at::Tensor want =
          Attention(texts[i].qkv.to(at::kFloat), c().layout, Sequences::Even(1, texts[i].qkv.size(0)), c().rule);
      const double tolerance = c().int8 ? 4e-2 : c().type == at::kFloat ? 1e-5 : 2e-2;
      EXPECT_LE((got[i].to(at::kFloat) - want).abs().max().item<double>(), tolerance) << i << " plain " << plain;
    }
  }
}

TEST_P(AttendBlocksTest, ATokenHasTheSameBitsInAnyBatch) {
  const std::vector<std::int64_t> lengths{70, 33, 96};
  std::vector<CachedText> alone = Texts(lengths, 3), batch = Texts(lengths, 3);
  const CachedLayer one = Layer(), other = Layer();
  std::vector<std::vector<at::Tensor>> rows(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::int64_t token = 0; token < lengths[i]; ++token) rows[i].push_back(Advance(alone, {i}, {1}, one)[0]);
  }
  const std::vector<at::Tensor> first = Advance(batch, {0, 1, 2}, {50, 33, 1}, other);
  const std::vector<at::Tensor> second = Advance(batch, {2, 0}, {95, 20}, other);
  EXPECT_TRUE(at::cat({first[0], second[1]}).equal(at::cat(rows[0])));
  EXPECT_TRUE(first[1].equal(at::cat(rows[1])));
  EXPECT_TRUE(at::cat({first[2], second[0]}).equal(at::cat(rows[2])));
}

std::vector<PagedCase> PagedCases() {
  std::vector<PagedCase> cases;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    cases.push_back({{4, 2, 64}, {}, type});
    cases.push_back({{12, 12, 40}, {}, type});
    cases.push_back({{20, 1, 16}, {.window = 37}, type});
    cases.push_back({{3, 3, 7}, {.window = 1}, type});
    cases.push_back({{4, 2, 64}, {}, type, /*int8=*/true});
    cases.push_back({{20, 1, 7}, {.window = 37}, type, /*int8=*/true});
    cases.push_back({{4, 2, 24}, {.scale = 0.3}, type});
    cases.push_back({{6, 2, 16}, {.window = 20, .scale = 0.4, .softcap = 1.5}, type});
    cases.push_back({{6, 2, 16}, {.softcap = 1.5}, type, /*int8=*/true});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, AttendBlocksTest, ::testing::ValuesIn(PagedCases()), [](const auto& info) {
  const PagedCase& c = info.param;
  return std::string(c.type == at::kFloat ? "F32" : "BF16") + "_" + std::to_string(c.layout.heads) + "over" +
         std::to_string(c.layout.kv_heads) + "x" + std::to_string(c.layout.head_dim) + "window" +
         std::to_string(c.rule.window) + (c.rule.scale > 0 ? "scaled" : "") + (c.rule.softcap > 0 ? "capped" : "") +
         (c.int8 ? "int8" : "");
});

TEST(BlockTables, WithoutRoomOrBeyondTheCacheAreRefused) {
  BlockTables tables;
  tables.Add(std::vector<std::int32_t>{3, 1});
  EXPECT_NO_THROW(tables.Check(Sequences::Even(1, 30, 34), 32, 4));
  EXPECT_ANY_THROW(tables.Check(Sequences::Even(1, 31, 34), 32, 4));
  EXPECT_ANY_THROW(tables.Check(Sequences::Even(1, 30, 34), 32, 3));
  EXPECT_ANY_THROW(tables.Check(Sequences::Even(2, 1, 0), 32, 4));
  EXPECT_ANY_THROW(MakeCachedLayer(4, 2, 20, 8, at::TensorOptions(at::kFloat)));
}

}  // namespace
}  // namespace millrace::engine::ops
