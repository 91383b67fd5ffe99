#include "millrace/engine/config/config_members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "millrace/base/hash/random.h"
#include "millrace/engine/config/families.h"

namespace millrace::engine {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json SmallConfig(std::string_view type) {
  const ModelSizes sizes{.vocab_size = 16,
                         .hidden_size = 128,  // GPT-J rotates 64 dimensions of a head
                         .intermediate_size = 8,
                         .num_layers = 1,
                         .num_heads = 2,
                         .num_kv_heads = 2,
                         .max_positions = 8};
  return FindFamily(type)->new_model(type, sizes);
}

TEST(ConfigMembers, WhatChangesTheModelAndIsNotImplementedIsRefusedByName) {
  for (const ModelFamily& family : ModelFamilies()) {
    for (const std::string_view type : family.model_types) {
      Json config = SmallConfig(type);
      ASSERT_TRUE(ParseModelConfig(config, "c")) << type;
      for (const auto& [member, neutral, other] : {std::tuple("final_logit_softcapping", Json(nullptr), Json(30.0)),
                                                   {"logit_scale", Json(1), Json(0.25)},
                                                   {"num_local_experts", Json(0), Json(8)},
                                                   {"use_qk_norm", Json(false), Json(true)}}) {
        if (std::ranges::find(family.options, member) != family.options.end()) continue;  // the family has it
        config[member] = neutral;
        EXPECT_TRUE(ParseModelConfig(config, "c")) << type << " " << member;
        config[member] = other;
        const auto refused = ParseModelConfig(config, "c");
        ASSERT_FALSE(refused) << type << " " << member;
        EXPECT_THAT(refused.error().ToString(), AllOf(HasSubstr(member), HasSubstr(DumpJson(other))));
        config.erase(member);
      }
    }
  }
}

TEST(ConfigMembers, MembersOfNobodyAreNamed) {
  Random random(9);
  for (const ModelFamily& family : ModelFamilies()) {
    for (const std::string_view type : family.model_types) {
      Json config = SmallConfig(type);
      for (const char* known : {"_name_or_path", "transformers_version", "use_cache", "pad_token_id"})
        config[known] = 1;
      EXPECT_THAT(UnknownMembers(config), ElementsAre()) << type;
      EXPECT_EQ(UnknownMembersNote(config), "");
      const std::string made_up = fmt::format("of_others_{}", random.Next());
      config[made_up] = random.Uniform();
      config["auto_map"] = {{"AutoModel", "modeling.Own"}};
      EXPECT_THAT(UnknownMembers(config), ElementsAre(made_up, "auto_map")) << type;
      EXPECT_THAT(UnknownMembersNote(config), HasSubstr(made_up + ", auto_map"));
    }
  }
}

/// What a family writes is known to it.
TEST(ConfigMembers, WrittenConfigurationsHaveNoUnknownMembers) {
  for (const ModelFamily& family : ModelFamilies()) {
    for (const std::string_view type : family.model_types) {
      EXPECT_THAT(UnknownMembers((*ParseModelConfig(SmallConfig(type), "c"))->ToJson()), ElementsAre()) << type;
    }
  }
}

}  // namespace
}  // namespace millrace::engine
