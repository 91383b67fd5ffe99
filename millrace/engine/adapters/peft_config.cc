#include "millrace/engine/adapters/peft_config.h"

#include <initializer_list>

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
  for (const char* key : {"bias", "rank_pattern", "alpha_pattern", "layers_to_transform", "layer_replication",
                          "exclude_modules", "target_parameters", "lora_bias", "megatron_config", "use_qalora"}) {
    if (!IsNeutral(json, key)) {
      return Fail(Code::kUnsupported, "{}: {} {} is not implemented", what, key, DumpJson(*JsonFind(json, key)));
    }
  }
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
        if (!target.is_string()) return Fail(Code::kInvalidArgument, "{}: target_modules should be names", what);
        options.targets.push_back(target.get<std::string>());
      }
    }
  }
  MR_TRY(CheckLora(options, what));
  return options;
}

}  // namespace millrace::engine
