// The family of models that docs/extending.md prints. CMake compiles it as it is printed there.
#include <gtest/gtest.h>

#include "millrace/engine/config/model_family.h"
#include "millrace/engine/families/mill/mill_config.h"
#include "millrace/engine/models/model.h"

namespace millrace::engine {

ModelFamily MillFamily();
std::unique_ptr<Model> BuildMill(std::shared_ptr<const ModelConfig> config);

namespace {

TEST(ExampleFamily, IsAFamily) {
  const ModelFamily family = MillFamily();
  const Json json = family.new_model(
      "mill", {.vocab_size = 100, .hidden_size = 16, .num_layers = 2, .num_heads = 2, .max_positions = 32});
  const std::shared_ptr<const ModelConfig> config = family.parse(json, "config.json").value();
  // A block: two norms, four products of attention, two of the MLP.
  EXPECT_EQ(config->ParameterCount(), 2 * 100 * 16 + 16 + 2 * (2 * 16 + 4 * 16 * 16 + 2 * 16 * 64));
  EXPECT_EQ(family.parse(config->ToJson(), "config.json").value()->ToJson(), config->ToJson());
  EXPECT_TRUE(BuildMill(config)->stages().empty()) << "MakeModel adds the layers";
}

}  // namespace
}  // namespace millrace::engine
