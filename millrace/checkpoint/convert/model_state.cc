#include "millrace/checkpoint/convert/model_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/checkpoint/convert/huggingface/hf_model.h"
#include "millrace/checkpoint/convert/meta_llama_names.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/config/families.h"

namespace millrace::checkpoint {
namespace {

/// Parts of names that wrappers of modules add: torch.compile, FSDP, and its checkpointing of activations.
constexpr std::string_view kWrappers[] = {"_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."};
/// The keys below which trainers save a model's weights, the usual first. Others may hold averages of them.
constexpr std::string_view kUsualKeys[] = {"", "model.", "module.", "state_dict.", "model_state_dict."};
/// Tensors of Meta's files that a model computes by itself.
constexpr std::string_view kComputed[] = {"rope.freqs", "freqs_cis"};

/// Returns a tensor's path with dots, and without the parts that wrappers add.
std::string DottedName(std::string path) {
  std::ranges::replace(path, '/', '.');
  for (const std::string_view wrapper : kWrappers) {
    for (std::size_t at = path.find(wrapper); at != path.npos; at = path.find(wrapper, at))
      path.erase(at, wrapper.size());
  }
  return path;
}

/// A place in the state where names of the model's parameters were found.
struct ModelPlace {
  std::map<std::string, std::string> tensors;  ///< by parameter
  std::map<std::string, std::int64_t> heads;   ///< interleaved ones, by the state's tensor
  Status ambiguous;                            ///< fails if two tensors are one parameter
};

/// Finds the model's tensors.
class ModelFinder {
 public:
  ModelFinder(const ImportSource& source, const engine::ModelConfig& config)
      : source_(source),
        config_(config),
        names_(engine::FindFamily(config.family())->names),
        shape_(config.Shape()),
        required_(shape_.ParameterNames()),
        known_(required_.begin(), required_.end()) {
    if (shape_.tied()) known_.insert(names_.tied_names.begin(), names_.tied_names.end());
  }

  /// Returns the names of the model's tensors in Hugging Face's files, by the state's. `heads`: as ModelPlace has them.
  Result<std::map<std::string, std::string>> Find(std::map<std::string, std::int64_t>& heads) {
    for (const auto& [path, meta] : source_.tensors) Place(path);
    const std::string prefix = MR_TRY(ChoosePlace());
    ModelPlace& place = places_.at(prefix);
    MR_TRY(std::move(place.ambiguous));
    MR_TRY(CheckRest(prefix, place));
    std::map<std::string, std::string> found;
    for (const auto& [parameter, tensor] : place.tensors) found.emplace(tensor, parameter);
    heads = std::move(place.heads);
    return found;
  }

 private:
  /// Returns the parameter that a name stands for; nothing if there is none.
  std::optional<TranslatedName> ParameterOf(const std::string& name) const {
    if (known_.contains(name)) return TranslatedName{name};
    std::string of_class = std::string(names_.prefix) + name;
    if (known_.contains(of_class)) return TranslatedName{std::move(of_class)};
    auto translated = TranslateMetaName(name, config_);
    if (translated && known_.contains(translated->name)) return translated;
    return std::nullopt;
  }

  /// Adds the tensor to all places in which it may be a parameter: "model.norm.weight" is Hugging Face's at the root,
  /// and Meta's below "model".
  void Place(const std::string& path) {
    const std::string dotted = DottedName(path);
    for (std::size_t begin = 0; begin < dotted.size();) {
      if (const auto parameter = ParameterOf(dotted.substr(begin))) {
        ModelPlace& place = places_[dotted.substr(0, begin)];
        const auto [other, is_new] = place.tensors.emplace(parameter->name, path);
        if (!is_new) {
          place.ambiguous = Fail(Code::kUnsupported, "{}: {} and {} are the same parameter {}; save one model alone",
                                 source_.name, other->second, path, parameter->name);
        }
        if (parameter->interleaved_heads > 0) place.heads.emplace(path, parameter->interleaved_heads);
      }
      const std::size_t dot = dotted.find('.', begin);
      begin = dot == dotted.npos ? dotted.size() : dot + 1;
    }
  }

  /// Returns the first parameter that the place lacks; empty if it has all.
  std::string MissingIn(const ModelPlace& place) const {
    for (const std::string& parameter : required_) {
      if (!place.tensors.contains(parameter)) return parameter;
    }
    return "";
  }

  Result<std::string> ChoosePlace() const {
    std::vector<std::string> complete;
    const std::pair<const std::string, ModelPlace>* fullest = nullptr;
    for (const auto& place : places_) {
      // Below the prefix of a whole model, its base model is another whole one.
      const bool is_part = std::ranges::any_of(complete, [&](const auto& key) { return place.first.starts_with(key); });
      if (!is_part && MissingIn(place.second).empty()) complete.push_back(place.first);
      if (fullest == nullptr || place.second.tensors.size() > fullest->second.tensors.size()) fullest = &place;
    }
    for (const std::string_view key : kUsualKeys) {
      if (std::ranges::find(complete, key) != complete.end()) return std::string(key);
    }
    if (complete.size() == 1) return complete.front();
    if (!complete.empty()) {
      return Fail(Code::kUnsupported, "{} has the model twice, below {} and {}; save one of them alone", source_.name,
                  complete[0], complete[1]);
    }
    if (fullest == nullptr) {
      return Fail(Code::kNotFound,
                  "{} has no weights of the model that --config describes, such as {}; leave out --config to import "
                  "the tensors as they are",
                  source_.name, required_.front());
    }
    return Fail(Code::kNotFound, "{} lacks the weight {} of the model that --config describes", source_.name,
                fullest->first + MissingIn(fullest->second));
  }

  bool IsComputed(std::string_view name) const {
    const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
    return std::ranges::any_of(kComputed, ends) || std::ranges::any_of(names_.computed, ends);
  }

  /// Checks that no tensor beside the model's is a weight of another model. All tensors below the prefix are the
  /// model's; without a prefix, those of other dicts of the state are not.
  Status CheckRest(const std::string& prefix, const ModelPlace& place) const {
    const auto dict_of = [](std::string_view path) { return path.substr(0, path.contains('/') ? path.find('/') : 0); };
    std::set<std::string_view> used, dicts;
    for (const auto& [parameter, tensor] : place.tensors) {
      used.insert(tensor);
      dicts.insert(dict_of(tensor));
    }
    for (const auto& [path, meta] : source_.tensors) {
      const std::string dotted = DottedName(path);
      if (used.contains(path) || IsComputed(dotted) || !dotted.starts_with(prefix)) continue;
      if (prefix.empty() && (!dicts.contains(dict_of(path)) || dotted.starts_with("optim"))) continue;
      return Fail(Code::kUnsupported,
                  "{} has the tensor {}, for which the model that --config describes has no place; correct --config, "
                  "or leave it out to import the tensors as they are",
                  source_.name, path);
    }
    return {};
  }

  const ImportSource& source_;
  const engine::ModelConfig& config_;
  const engine::FolderNames& names_;
  const plan::ModelShape shape_;
  const std::vector<std::string> required_;
  std::set<std::string> known_;               ///< and second names of tied parameters
  std::map<std::string, ModelPlace> places_;  ///< by prefix: "", "model."
};

/// Puts the rows of a box in Hugging Face's order: as a box for each head and each half of its rows.
void SplitHeads(const SourceBox& box, const TensorMeta& meta, std::uint64_t head_rows, std::vector<SourceBox>& boxes) {
  const std::size_t dims = meta.shape.size();
  Box whole = box.box;
  if (whole.whole()) {
    whole.offsets.assign(dims, 0);
    whole.lengths.assign(meta.shape.begin(), meta.shape.end());
  }
  std::vector<std::int64_t> strides = box.strides;
  if (strides.empty()) {
    strides.assign(dims, 1);
    for (std::size_t d = dims - 1; d > 0; --d)
      strides[d - 1] = strides[d] * static_cast<std::int64_t>(whole.lengths[d]);
  }
  const std::uint64_t first = whole.offsets[0], last = first + whole.lengths[0], width = DTypeBytes(meta.dtype);
  const std::uint64_t row_bytes = static_cast<std::uint64_t>(strides[0]) * width;
  for (std::uint64_t head = first / head_rows * head_rows; head < last; head += head_rows) {
    for (const std::uint64_t half : {0, 1}) {
      // Pair i of the head has its row of this half at head + 2i + half.
      const auto pairs_before = [&](std::uint64_t row) {
        return row <= head + half ? 0 : std::min((row - head - half + 1) / 2, head_rows / 2);
      };
      const std::uint64_t begin = pairs_before(first), end = pairs_before(last);
      if (begin == end) continue;
      SourceBox part = box;
      part.box = whole;
      part.box.offsets[0] = head + half * head_rows / 2 + begin;
      part.box.lengths[0] = end - begin;
      part.offset = box.offset + (head + 2 * begin + half - first) * row_bytes;
      part.strides = strides;
      part.strides[0] *= 2;
      boxes.push_back(std::move(part));
    }
  }
}

/// Puts the rows of interleaved heads in Hugging Face's order.
Status OrderRows(const std::map<std::string, std::int64_t>& heads, ImportSource& source) {
  for (const auto& [tensor, count] : heads) {
    const TensorMeta& meta = source.tensors.at(tensor);
    if (meta.shape.empty() || meta.shape[0] == 0 || meta.shape[0] % (2 * count) != 0) {
      return Fail(Code::kCorrupt, "{}: {} has {} rows, which are not those of {} heads; correct --config", source.name,
                  tensor, meta.shape.empty() ? 0 : meta.shape[0], count);
    }
  }
  std::vector<SourceBox> boxes;
  for (SourceBox& box : source.boxes) {
    const auto found = heads.find(box.tensor);
    if (found == heads.end()) {
      boxes.push_back(std::move(box));
      continue;
    }
    const TensorMeta& meta = source.tensors.at(box.tensor);
    SplitHeads(box, meta, static_cast<std::uint64_t>(meta.shape[0] / found->second), boxes);
  }
  source.boxes = std::move(boxes);
  return {};
}

}  // namespace

Status TakeModel(const Json& config, ImportSource& source) {
  const auto parsed = MR_TRY(engine::ParseModelConfig(config, "--config"));
  std::map<std::string, std::int64_t> heads;
  const auto found = MR_TRY(ModelFinder(source, *parsed).Find(heads));
  MR_TRY(OrderRows(heads, source));
  const auto other = std::ranges::find_if(source.tensors, [&](const auto& one) { return !found.contains(one.first); });
  if (other != source.tensors.end()) {
    source.notes.push_back(fmt::format("{} tensors that are not the model's weights are not imported, such as {}",
                                       source.tensors.size() - found.size(), other->first));
  }
  if (source.meta.contains(kMetaValues)) {
    source.notes.emplace_back("plain values beside the model are not imported");
  }
  source.Rename([&](const std::string& tensor) {
    const auto parameter = found.find(tensor);
    return parameter == found.end() ? std::nullopt : std::optional(std::string(kModelGroup) + parameter->second);
  });
  source.meta = {{std::string(kMetaModelConfig), config}};
  NormalizeModel(source);
  for (const auto& [file, info] : source.files) AddModelFile(source, file, file);
  return {};
}

}  // namespace millrace::checkpoint
