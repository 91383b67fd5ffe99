#include "millrace/serve/engine/pooling.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "millrace/base/json.h"

namespace millrace::serve {
namespace {

constexpr std::uint64_t kMaxPoolingFileBytes = 1 * kMiB;

struct NamedMode {
  std::string_view key;   ///< of older files: a flag
  std::string_view name;  ///< of newer files: the value of "pooling_mode"
  PoolingMode mode;
};
/// In the order in which sentence-transformers joins the vectors of several modes.
constexpr NamedMode kModes[] = {{"pooling_mode_cls_token", "cls", PoolingMode::kFirst},
                                {"pooling_mode_max_tokens", "max", PoolingMode::kMax},
                                {"pooling_mode_mean_tokens", "mean", PoolingMode::kMean},
                                {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingMode::kMeanSqrt},
                                {"pooling_mode_weightedmean_tokens", "weightedmean", PoolingMode::kWeightedMean},
                                {"pooling_mode_lasttoken", "lasttoken", PoolingMode::kLast}};

Result<std::vector<PoolingMode>> ReadModes(const Json& config, std::string_view what) {
  std::vector<PoolingMode> modes;
  const Json* named = JsonFind(config, "pooling_mode");
  for (const NamedMode& mode : kModes) {
    const Json* flag = JsonFind(config, mode.key);
    const bool is_named = named != nullptr && (*named == mode.name ||
                                               (named->is_array() && std::ranges::count(*named, Json(mode.name)) > 0));
    if (is_named || (flag != nullptr && *flag == true)) modes.push_back(mode.mode);
  }
  if (modes.empty()) return Fail(Code::kUnsupported, "{} names no way of pooling that Millrace knows", what);
  return modes;
}

Result<Json> ReadFile(const checkpoint::ModelSource& model, const std::string& file, const object::Call& call) {
  const auto text = MR_TRY(model.File(file, kMaxPoolingFileBytes, call));
  if (!text) return Json(nullptr);
  return ParseJson(*text, fmt::format("{}/{}", model.name(), file));
}

at::Tensor PoolBy(PoolingMode mode, const at::Tensor& hidden) {
  const std::int64_t tokens = hidden.size(0);
  switch (mode) {
    case PoolingMode::kFirst:
      return hidden.select(0, 0);
    case PoolingMode::kLast:
      return hidden.select(0, tokens - 1);
    case PoolingMode::kMax:
      return std::get<0>(hidden.max(0));
    case PoolingMode::kMean:
      return hidden.mean(0);
    case PoolingMode::kMeanSqrt:
      return hidden.sum(0) / std::sqrt(static_cast<double>(tokens));
    case PoolingMode::kWeightedMean: {
      const at::Tensor weights = at::arange(1, tokens + 1, hidden.options());
      return (hidden * weights.unsqueeze(1)).sum(0) / weights.sum();
    }
  }
  return hidden.mean(0);
}

}  // namespace

Result<Pooling> ReadPooling(const checkpoint::ModelSource& model, const object::Call& call) {
  const Json modules = MR_TRY(ReadFile(model, "modules.json", call));
  std::string file = "1_Pooling/config.json";
  Pooling pooling;
  if (modules.is_array()) {
    file.clear();
    pooling.normalizes = false;
    for (const Json& module : modules) {
      const std::string type = JsonString(module, "type").value_or("");
      const std::string kind = type.substr(type.find_last_of('.') + 1);
      const std::string path = JsonString(module, "path").value_or("");
      if (kind == "Pooling") {
        file = path + "/config.json";
      } else if (kind == "Normalize") {
        pooling.normalizes = true;
      } else if (kind != "Transformer") {
        return Fail(Code::kUnsupported, "{}/modules.json: a module of type \"{}\" is not implemented", model.name(),
                    type);
      }
    }
    if (file.empty()) return Fail(Code::kUnsupported, "{}/modules.json names no pooling", model.name());
  }
  const Json config = MR_TRY(ReadFile(model, file, call));
  if (!config.is_null()) {
    pooling.modes = MR_TRY(ReadModes(config, fmt::format("{}/{}", model.name(), file)));
  } else if (modules.is_array()) {
    return Fail(Code::kNotFound, "{}/modules.json names {}, which is not there; copy it from the model", model.name(),
                file);
  }
  return pooling;
}

Result<bool> PostProcessorEndsTexts(const checkpoint::ModelSource& model, const object::Call& call) {
  constexpr std::uint64_t kMaxTokenizerBytes = 256 * kMiB;  // as tokenizer/open
  constexpr std::string_view kFile = "tokenizer.json";
  const auto text = MR_TRY(model.File(kFile, kMaxTokenizerBytes, call));
  if (!text) return false;
  const Json file = MR_TRY(ParseJson(*text, fmt::format("{}/{}", model.name(), kFile)));
  const Json* processor = JsonFind(file, "post_processor");
  if (processor == nullptr) return false;
  const Json* several = JsonFind(*processor, "processors");
  const Json steps = several != nullptr ? *several : Json::array({*processor});
  return std::ranges::any_of(steps, [](const Json& step) {
    const Json* single = JsonFind(step, "single");
    return single != nullptr && single->is_array() && !single->empty() &&
           JsonFind(single->back(), "SpecialToken") != nullptr;
  });
}

at::Tensor Pool(const Pooling& pooling, const at::Tensor& hidden) {
  std::vector<at::Tensor> vectors;
  for (const PoolingMode mode : pooling.modes) vectors.push_back(PoolBy(mode, hidden));
  at::Tensor vector = vectors.size() == 1 ? vectors[0] : at::cat(vectors);
  constexpr double kLeast = 1e-12;  // of torch.nn.functional.normalize
  if (pooling.normalizes) vector = vector / vector.norm().clamp_min(kLeast);
  return vector.cpu().contiguous();
}

}  // namespace millrace::serve
