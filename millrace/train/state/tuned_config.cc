#include "millrace/train/state/tuned_config.h"

#include <algorithm>

#include "millrace/engine/config/config_fields.h"

namespace millrace::train {
namespace {

/// Adds the tokenizer's end token to eos_token_id, which is a number or a list of numbers.
void AddEnd(Json& config, const tokenizer::Tokenizer& tokenizer) {
  if (tokenizer.eos() == tokenizer::kNoToken) return;
  Json& ends = config["eos_token_id"];
  const Json eos = tokenizer.eos();
  if (ends.is_null()) {
    ends = eos;
  } else if (!ends.is_array() && ends != eos) {
    ends = Json::array({ends, eos});
  } else if (ends.is_array() && std::ranges::find(ends, eos) == ends.end()) {
    ends.push_back(eos);
  }
}

std::size_t NamesIn(const Json& config) {
  const Json* names = JsonFind(config, "id2label");
  return names != nullptr && names->is_object() ? names->size() : 0;
}

}  // namespace

Json TunedConfig(const Json& stored, const engine::ModelConfig& config, std::span<const std::string> classes,
                 at::ScalarType precision, const tokenizer::Tokenizer& tokenizer) {
  Json own = config.ToJson();
  if (const std::size_t count = NamesIn(own); count > 0) {
    if (classes.size() == count) {
      engine::NameClasses(own, classes);
    } else if (NamesIn(stored) == count) {
      own.erase("id2label");
      own.erase("label2id");
    }
  }
  Json tuned = stored.is_object() ? stored : Json::object();
  tuned.update(own);
  tuned["torch_dtype"] = precision == at::kFloat ? "float32" : precision == at::kHalf ? "float16" : "bfloat16";
  if (tuned.contains("dtype")) tuned["dtype"] = tuned["torch_dtype"];  // transformers 5 writes it so
  if (tokenizer.bos() != tokenizer::kNoToken) tuned["bos_token_id"] = tokenizer.bos();
  AddEnd(tuned, tokenizer);
  return tuned;
}

Json TunedGenerationConfig(const Json& stored, const tokenizer::Tokenizer& tokenizer) {
  if (!stored.is_object()) return nullptr;
  Json tuned = stored;
  AddEnd(tuned, tokenizer);
  return tuned;
}

}  // namespace millrace::train
