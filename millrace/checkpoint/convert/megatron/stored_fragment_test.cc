// Properties over random models and layouts: a stacked tensor that ranks hold in any boxes and runs is cut into parts
// that cover each of its tensors once, and that have the bytes of a second implementation of Megatron's order.
#include "millrace/checkpoint/convert/megatron/stored_fragment.h"

#include <gmock/gmock.h>

#include <map>
#include <tuple>

#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/convert/megatron/megatron_names.h"

namespace millrace::checkpoint {
namespace {

using ::testing::HasSubstr;

MegatronModel RandomMegatronModel(Random& random, MegatronFamily family) {
  MegatronModel model{.family = family, .layers = 1 + random.Below(3), .head_dim = 2 * (1 + random.Below(2))};
  model.groups = 1 + random.Below(3);
  model.heads = model.groups * (family == MegatronFamily::kLlama ? 1 + random.Below(3) : 1);
  model.hidden = model.heads * model.head_dim;
  model.intermediate = 4 + random.Below(4);
  model.vocabulary = 9 + random.Below(5);
  return model;
}

/// Cuts `length` into equal parts for a random number of ranks that divides it.
std::uint64_t PartOf(Random& random, std::uint64_t length) {
  std::uint64_t ranks = 1 + random.Below(3);
  while (length % ranks != 0) --ranks;
  return length / ranks;
}

/// The tensors that parts were collected of: by layer and name, the element's number in the file for each index.
using Collected = std::map<std::pair<std::uint64_t, std::string>, std::map<std::vector<std::uint64_t>, std::uint64_t>>;

/// Adds the elements of a part whose bytes lie one after the other.
void Collect(const SourceBox& part, std::uint64_t layer, const std::string& name, Collected& collected) {
  std::uint64_t total = 1;
  for (const std::uint64_t length : part.box.lengths) total *= length;
  const std::uint64_t begin = part.begin, count = part.elements > 0 ? part.elements : total;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::vector<std::uint64_t> index(part.box.lengths.size());
    std::uint64_t rest = begin + i;
    for (std::size_t d = index.size(); d-- > 0; rest /= part.box.lengths[d])
      index[d] = part.box.offsets[d] + rest % part.box.lengths[d];
    EXPECT_TRUE(collected[std::pair(layer, name)].emplace(std::move(index), part.offset + i).second) << "twice";
  }
}

/// The value at an index of the stacked tensor: every element has another one.
std::uint64_t ValueAt(std::uint64_t layer, std::uint64_t row, std::uint64_t column) {
  return (layer * 1000 + row) * 1000 + column;
}

TEST(StoredFragment, AnyBoxesAndRunsOfStackedLayersComeApart) {
  Random random(5);
  for (int i = 0; i < 200; ++i) {
    const MegatronModel model = RandomMegatronModel(random, MegatronFamily::kLlama);
    const std::uint64_t query = model.heads / model.groups * model.head_dim, group = query + 2 * model.head_dim;
    const std::uint64_t rows = model.groups * group, columns = 1 + random.Below(6);
    const MegatronName name = ParseMegatronName("decoder.layers.self_attention.linear_qkv.weight");
    auto mapped = MapMegatronTensor(model, name, rows);
    ASSERT_TRUE(mapped) << mapped.error().ToString();
    // The file: all boxes one after the other. `file[i]` is the value of element i.
    const std::uint64_t box_rows = PartOf(random, rows), box_columns = PartOf(random, columns);
    std::vector<std::uint64_t> file;
    std::vector<StoredFragment> fragments;
    for (std::uint64_t layer = 0; layer < model.layers; ++layer) {
      for (std::uint64_t row = 0; row < rows; row += box_rows) {
        for (std::uint64_t column = 0; column < columns; column += box_columns) {
          SourceBox part{.box = {{layer, row, column}, {1, box_rows, box_columns}}, .offset = file.size()};
          const std::uint64_t cut = random.Below(box_rows * box_columns);
          if (random.Below(2) == 0 && cut > 0) {  // two ranks have a run each
            part.elements = cut;
            fragments.push_back({part, 1});
            part = {
                .box = part.box, .offset = file.size() + cut, .begin = cut, .elements = box_rows * box_columns - cut};
          }
          fragments.push_back({part, 1});
          for (std::uint64_t r = 0; r < box_rows; ++r)
            for (std::uint64_t c = 0; c < box_columns; ++c) file.push_back(ValueAt(layer, row + r, column + c));
        }
      }
    }
    Collected collected;
    for (const MappedTensor& tensor : *mapped) {
      for (const StoredFragment& fragment : fragments) {
        CutFragment(fragment, true, tensor.spans,
                    [&](std::uint64_t layer, const SourceBox& part) { Collect(part, layer, tensor.name, collected); });
      }
    }
    ASSERT_EQ(collected.size(), 3 * model.layers);
    for (const auto& [which, elements] : collected) {
      const char kind = which.second.at(std::string_view("self_attn.").size());
      const std::uint64_t own = kind == 'q' ? query : model.head_dim;
      const std::uint64_t skipped = kind == 'q' ? 0 : kind == 'k' ? query : query + model.head_dim;
      EXPECT_EQ(elements.size(), model.groups * own * columns) << which.second;
      for (const auto& [index, at] : elements) {
        const std::uint64_t row = index[0] / own * group + skipped + index[0] % own;
        EXPECT_EQ(file.at(at), ValueAt(which.first, row, index[1])) << which.second;
      }
    }
  }
}

TEST(StoredFragment, FlattenedPartsAreRunsOfTheirFragments) {
  // [4, 6] in 2 x 3 fragments of 2 x 2. Part: elements 1 to 3 of the fragment at (1, 2).
  const SourceBox part{.tensor = "t", .box = {{1, 2, 1}, {1, 1, 2}}, .offset = 40};
  const auto fragment = UnflattenedPart(part, {2, 3, 4}, {4, 6});
  ASSERT_TRUE(fragment) << fragment.error().ToString();
  EXPECT_EQ(fragment->box, (Box{{2, 4}, {2, 2}}));
  EXPECT_EQ(fragment->begin, 1u);
  EXPECT_EQ(fragment->elements, 2u);
  EXPECT_EQ(fragment->offset, 40u);
  for (const auto& [stored, shape] :
       {std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>{{2, 3, 5}, {4, 6}},
        {{2, 4, 4}, {4, 6}},
        {{2, 3}, {4, 6}},
        {{0, 3, 4}, {4, 6}}})
    EXPECT_EQ(UnflattenedPart(part, stored, shape).error().code(), Code::kCorrupt);
}

TEST(MegatronNames, EveryRowHasOnePlaceInEveryFamily) {
  Random random(6);
  for (int i = 0; i < 100; ++i) {
    for (const MegatronFamily family : {MegatronFamily::kLlama, MegatronFamily::kGpt2}) {
      const MegatronModel model = RandomMegatronModel(random, family);
      const bool llama = family == MegatronFamily::kLlama;
      const std::uint64_t qkv = (model.heads + 2 * model.groups) * model.head_dim;
      for (const auto& [name, rows, tensors] :
           {std::tuple("decoder.layers.self_attention.linear_qkv.weight", qkv, llama ? 3u : 1u),
            {"decoder.layers.2.self_attention.linear_qkv.bias", qkv, llama ? 3u : 1u},
            {"module.decoder.layers.mlp.linear_fc1.weight", (llama ? 2 : 1) * model.intermediate, llama ? 2u : 1u},
            {"decoder.layers.mlp.linear_fc1.layer_norm_weight", model.hidden, 1u},
            {"decoder.final_layernorm.weight", model.hidden, 1u}}) {
        const auto mapped = MapMegatronTensor(model, ParseMegatronName(name), rows);
        ASSERT_TRUE(mapped) << mapped.error().ToString();
        EXPECT_EQ(mapped->size(), tensors) << name;
        std::vector<int> from(rows);
        for (const MappedTensor& tensor : *mapped) {
          std::vector<int> to(tensor.rows);
          for (const RowSpan& span : tensor.spans) {
            for (std::uint64_t row = 0; row < span.rows; ++row) {
              ++from.at(span.from + row);
              ++to.at(span.to + row);
            }
          }
          EXPECT_THAT(to, ::testing::Each(1)) << tensor.name;
        }
        EXPECT_THAT(from, ::testing::Each(1)) << name;
        EXPECT_EQ(MapMegatronTensor(model, ParseMegatronName(name), rows + 1).error().code(), Code::kCorrupt) << name;
      }
      const auto padded = MapMegatronTensor(model, {.rest = "embedding.word_embeddings.weight"}, model.vocabulary + 7);
      ASSERT_TRUE(padded);
      EXPECT_EQ(padded->at(0).rows, model.vocabulary);
    }
  }
  const MegatronModel model = RandomMegatronModel(random, MegatronFamily::kLlama);
  for (const char* name :
       {"decoder.layers.mlp.router.weight", "decoder.layers.mlp.linear_fc1.scale", "", "output_layer",
        "embedding.position_embeddings.weight", "decoder.layers.mlp.linear_fc2.weight_w"}) {
    const auto mapped = MapMegatronTensor(model, ParseMegatronName(name), 8);
    ASSERT_FALSE(mapped) << name;
    EXPECT_THAT(mapped.error().ToString(), HasSubstr("--from dcp")) << name;
  }
}

}  // namespace
}  // namespace millrace::checkpoint
