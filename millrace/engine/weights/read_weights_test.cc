// Weights as Hugging Face stores them, read by ranks that divide a model.
#include "millrace/engine/weights/read_weights.h"

#include <gtest/gtest.h>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/checkpoint/save/writer.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parallel/connect.h"
#include "millrace/engine/parameters/scalar_types.h"
#include "millrace/object/open/open.h"

namespace millrace::engine {
namespace {

std::unique_ptr<Model> MakeTiny(at::ScalarType dtype, std::uint64_t seed, ModelShare share = {}) {
  const Json json = {{"model_type", "gpt2"}, {"vocab_size", 31}, {"n_embd", 12},
                     {"n_layer", 2},         {"n_head", 4},      {"n_positions", 9}};
  return MakeModel(ParseModelConfig(json, "config.json").value(), dtype, at::kCPU, seed, std::move(share)).value();
}

/// Each rank reads what it owns: the same elements that one rank has, though files hold some matrices transposed and in
/// another type.
TEST(ReadWeights, FillsWhatARankOwns) {
  const TempDir folder = TempDir::Create().value();
  const auto connection = object::OpenConnection({}).value();
  const auto whole = MakeTiny(at::kFloat, 7);
  MemoryBudget budget(64 * kMiB);
  std::vector<checkpoint::SaveSlice> slices;
  std::vector<at::Tensor> stored;  // as Hugging Face has them
  for (const NamedParameter& parameter : whole->Parameters()) {
    stored.push_back((parameter.transposed ? parameter.tensor.t() : parameter.tensor).contiguous());
    const auto sizes = stored.back().sizes();
    slices.push_back({.name = std::string(checkpoint::kModelGroup) + parameter.name,
                      .meta = {.dtype = checkpoint::DType::kF32, .shape = {sizes.begin(), sizes.end()}},
                      .bytes = BytesOf(stored.back())});
  }
  const std::string url = (folder.path() / "run").native();
  const auto writer =
      checkpoint::Writer::Open(*connection, checkpoint::SingleRankExchange(), budget, {.url = url}).value();
  ASSERT_TRUE(writer->Save(1, slices, Json::object()));
  ASSERT_TRUE(writer->Wait());
  const auto reader = checkpoint::Reader::Open(*connection, url).value();

  Random random(3);
  for (int round = 0; round < 24; ++round) {
    const int ranks = 1 + static_cast<int>(random.Below(5)), tensor = 1 << random.Below(3);
    const Sharding sharding{.ranks = ranks,
                            .rank = static_cast<int>(random.Below(static_cast<std::uint64_t>(ranks))),
                            .zero = static_cast<int>(random.Below(4))};
    const at::ScalarType dtype = random.Below(2) == 0 ? at::kFloat : at::kBFloat16;
    const auto groups = ConnectThreads(tensor);
    Collective& group = *groups[random.Below(static_cast<std::uint64_t>(tensor))];
    const auto part =
        MakeTiny(dtype, 8, {.ranks = {&group}, .sharding = sharding, .initial_values = InitialValues::kNone});
    const Status read = ReadWeights(*reader, *part);
    ASSERT_TRUE(read) << read.error().ToString();
    for (const OwnedPiece& piece : part->buffer().owned_pieces()) {
      const NamedParameter& parameter = part->Parameters()[piece.parameter];
      at::Tensor want = whole->Parameters()[whole->buffer().Find(parameter.name)].tensor;
      if (!parameter.slice.whole()) {
        want =
            want.narrow(static_cast<std::int64_t>(parameter.slice.dim), parameter.slice.begin, parameter.slice.extent);
      }
      want = want.reshape({-1}).narrow(0, piece.first, piece.elements()).to(dtype);
      EXPECT_TRUE(piece.values.equal(want)) << parameter.name << ", part " << sharding.rank << " of " << ranks;
    }
  }
}

}  // namespace
}  // namespace millrace::engine
