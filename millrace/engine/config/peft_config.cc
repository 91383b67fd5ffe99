#include "millrace/engine/config/peft_config.h"

#include <algorithm>
#include <iterator>

namespace millrace::engine {
namespace {

/// Returns whether a member is absent or has a value that asks for nothing.
bool IsNeutral(const Json& json, std::string_view key) {
  const Json* value = JsonFind(json, key);
  if (value == nullptr || value->is_null()) return true;
  if (value->is_boolean()) return !value->get<bool>();
  if (value->is_string()) return *value == "none";
  return (value->is_object() || value->is_array()) && value->empty();
}

/// Members that are ignored with any value: which model is adapted, what wrote the file, how the
/// adapter was made, and options of others that are off.
constexpr std::string_view kKnown[] = {"auto_mapping",
                                       "base_model_name_or_path",
                                       "corda_config",
                                       "eva_config",
                                       "fan_in_fan_out",
                                       "inference_mode",
                                       "layers_pattern",
                                       "loftq_config",
                                       "lora_alpha",
                                       "lora_dropout",
                                       "lora_ga_config",
                                       "megatron_core",
                                       "modules_to_save",
                                       "peft_type",
                                       "peft_version",
                                       "qalora_group_size",
                                       "r",
                                       "revision",
                                       "target_modules",
                                       "task_type",
                                       "use_dora",
                                       "use_rslora"};

/// Ways to begin an adapter that leave the base model as it is. Others take a part of the base away, which PEFT takes
/// away again when it loads the adapter.
bool KeepsBase(const Json& init) {
  if (init.is_null() || init.is_boolean()) return true;
  return init == "gaussian" || init == "eva" || init == "orthogonal";
}

/// PEFT gets new members with each release, and many change what an adapter does. So a member that is not known must
/// ask for nothing.
Status CheckMembers(const Json& json, std::string_view what) {
  constexpr std::string_view kInit = "init_lora_weights";
  for (const auto& [key, value] : json.items()) {
    if (std::ranges::find(kKnown, key) != std::end(kKnown) || IsNeutral(json, key)) continue;
    if (key != kInit) return Fail(Code::kUnsupported, "{}: {} {} is not implemented", what, key, DumpJson(value));
    if (KeepsBase(value)) continue;
    return Fail(Code::kUnsupported,
                "{}: {} {} changes the adapted model, which is not implemented; save a plain adapter, with PEFT's "
                "path_initial_model_for_weight_conversion",
                what, kInit, DumpJson(value));
  }
  return {};
}

}  // namespace

Json PeftConfig(const LoraOptions& options, const PeftFacts& facts) {
  const bool all = options.targets == std::vector<std::string>{"all-linear"};
  Json json = {{"peft_type", "LORA"},
               {"task_type", facts.task.empty() ? Json(nullptr) : Json(facts.task)},
               {"base_model_name_or_path", facts.base},
               {"inference_mode", true},
               {"r", options.rank},
               {"lora_alpha", options.alpha},
               {"lora_dropout", options.dropout},
               {"use_rslora", options.rslora},
               {"target_modules", all ? Json("all-linear") : Json(options.targets)},
               {"modules_to_save", facts.whole.empty() ? Json(nullptr) : Json(facts.whole)},
               {"fan_in_fan_out", facts.transposed},
               {"bias", "none"},
               {"init_lora_weights", true}};
  // PEFT's default is false. So the configuration of a run without it stays what it was.
  if (options.dora) json["use_dora"] = true;
  return json;
}

Result<LoraOptions> ReadPeftConfig(const Json& json, std::string_view what) {
  const std::string type = MR_TRY(JsonString(json, "peft_type"));
  if (type != "LORA") return Fail(Code::kUnsupported, "{}: peft_type {} is not implemented; LORA is", what, type);
  MR_TRY(CheckMembers(json, what));
  LoraOptions options;
  options.rank = static_cast<int>(MR_TRY(JsonInt(json, "r")));
  const auto number = [&](std::string_view key, double absent) -> Result<double> {
    const Json* value = JsonFind(json, key);
    if (value == nullptr) return absent;
    if (!value->is_number()) return Fail(Code::kInvalidArgument, "{}: {} should be a number", what, key);
    return value->get<double>();
  };
  options.alpha = MR_TRY(number("lora_alpha", options.alpha));
  options.dropout = MR_TRY(number("lora_dropout", options.dropout));
  const auto flag = [&](std::string_view key) {
    const Json* value = JsonFind(json, key);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  };
  options.rslora = flag("use_rslora");
  options.dora = flag("use_dora");
  const Json* targets = JsonFind(json, "target_modules");
  if (targets != nullptr && targets->is_string()) {
    if (*targets != "all-linear") {
      return Fail(Code::kUnsupported, "{}: target_modules is the pattern {}; a list of names is implemented", what,
                  DumpJson(*targets));
    }
  } else {
    options.targets.clear();
    if (targets != nullptr && targets->is_array()) {
      for (const Json& target : *targets) {
        if (!target.is_string())
          return Fail(Code::kInvalidArgument, "{}: target_modules should be names of modules, such as q_proj", what);
        options.targets.push_back(target.get<std::string>());
      }
    }
  }
  MR_TRY(CheckLora(options, what));
  return options;
}

}  // namespace millrace::engine
