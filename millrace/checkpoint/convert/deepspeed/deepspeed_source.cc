#include "millrace/checkpoint/convert/deepspeed/deepspeed_source.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/checkpoint/convert/deepspeed/deepspeed_files.h"
#include "millrace/checkpoint/convert/huggingface/hf_model.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/torch_state.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

constexpr std::string_view kLatest = "latest", kModelStates = "_model_states.pt", kOptimStates = "_optim_states.pt";
constexpr std::string_view kWholeModel = "mp_rank_00_model_states.pt";
/// The longest name of a subfolder: the limit of file systems.
constexpr std::size_t kLongestTag = 255;
/// The most boxes of all tensors. A guess: 100 times those of a model of 1,000 layers on 100 ranks.
constexpr std::size_t kMaxBoxes = 100'000'000;

/// The number behind `before` in a file's name; nothing if there is none.
std::optional<std::size_t> NumberBehind(std::string_view name, std::string_view before) {
  const std::size_t at = name.find(before);
  if (at == name.npos) return std::nullopt;
  std::size_t number = 0;
  const char* begin = name.data() + at + before.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  return error == std::errc() && end > begin ? std::optional(number) : std::nullopt;
}

class DeepSpeedFolder {
 public:
  DeepSpeedFolder(const object::Location& folder, const SourceOptions& options, object::Call call)
      : options_(options), call_(std::move(call)) {
    source_.format = ForeignFormat::kDeepSpeed;
    source_.folder = folder;
    source_.name = NameOf(folder);
  }

  Result<ImportSource> Read() {
    MR_TRY(FindFiles());
    MR_TRY(CheckParallelism());
    MR_TRY(ReadConfig());
    const auto optimizer_files = MR_TRY(FilesOfRanks(kOptimStates));
    std::vector<DeepSpeedOptimizer> optimizers;
    for (const std::string& file : optimizer_files) {
      DeepSpeedOptimizer optimizer = MR_TRY(ReadDeepSpeedOptimizer(source_, file, call_));
      optimizers.push_back(std::move(optimizer));
    }
    MR_TRY(CheckRanks(optimizers));
    const bool shares = !optimizers.empty() && optimizers[0].stage == 3;
    const auto model_files = MR_TRY(ModelFiles(shares));
    const DeepSpeedModel model = MR_TRY(ReadDeepSpeedModel(source_, model_files[0], call_));
    if (model.model_parallel > 1) return Fail(TensorParallel());
    if (optimizers.empty() && !model.groups.empty()) {
      return Fail(Code::kNotFound, "{} has no *{}: the weights are in these files. Copy them from all machines",
                  source_.name, kOptimStates);
    }
    MR_TRY(AddFrozen(model, model_files, shares));
    MR_TRY(AddParameters(model, optimizers));
    MR_TRY(AddRest(model, shares));
    AddValues(model, optimizers);
    NormalizeModel(source_);
    return std::move(source_);
  }

 private:
  Status FindFiles() {
    source_.files = MR_TRY(FilesOf(source_.folder, call_));
    const bool is_save = std::ranges::any_of(source_.files, [](const auto& file) {
      return file.first.ends_with(kModelStates) || file.first.ends_with(kOptimStates);
    });
    if (is_save) return {};
    const std::string latest(kLatest);
    auto content = MR_TRY(object::GetAll(*source_.folder.store, source_.folder.key + latest, kLongestTag + 2, call_));
    if (!content) {
      return Fail(Code::kNotFound,
                  "{} is not a checkpoint folder of DeepSpeed: it has no file {} and no *{}; name the folder that "
                  "save_checkpoint wrote",
                  source_.name, kLatest, kModelStates);
    }
    const std::string tag(Trim(content->bytes));
    if (tag.empty() || tag[0] == '.' || tag.find('/') != tag.npos)
      return Fail(Code::kCorrupt, "{}/{} does not name a subfolder", source_.name, kLatest);
    save_ = tag + "/";
    const auto files = MR_TRY(FilesOf({source_.folder.store, source_.folder.key + save_}, call_));
    if (files.empty()) {
      return Fail(Code::kNotFound, "{}/{} names {}, which is not there: import another save's subfolder", source_.name,
                  kLatest, tag);
    }
    for (const auto& [name, info] : files) source_.files.emplace(save_ + name, info);
    return {};
  }

  /// Calls `visit` with the names of the save's files, without the subfolder.
  template <class Visit>
  void ForEachFile(const Visit& visit) const {
    for (const auto& [file, info] : source_.files)
      if (file.starts_with(save_) && file.find('/', save_.size()) == file.npos) visit(file.substr(save_.size()));
  }

  Error TensorParallel() const {
    return {Code::kUnsupported,
            fmt::format("{} is divided by tensor parallelism (files mp_rank_01…), which is not imported. Load it with "
                        "the program that saved it, save the model whole, and import that",
                        source_.name)};
  }
  Status CheckParallelism() const {
    Status status;
    ForEachFile([&](const std::string& name) {
      if (!name.ends_with(".pt")) return;
      if (NumberBehind(name, "mp_rank_").value_or(0) > 0) status = Fail(TensorParallel());
      if (name.find("expert_") != name.npos || name.starts_with("expp_rank_")) {
        status = Fail(Code::kUnsupported,
                      "{} has a mixture of experts ({}), which is not imported. Save the model "
                      "whole with the program that trained it, and import that",
                      source_.name, name);
      } else if (name.starts_with("layer_")) {
        status = Fail(Code::kUnsupported,
                      "{} was saved by DeepSpeed's pipeline engine in parts ({}), which are not "
                      "imported. Save the model whole with the program that trained it, and import that",
                      source_.name, name);
      }
    });
    return status;
  }

  Status ReadConfig() {
    const std::string key(kMetaModelConfig);
    if (options_.config) {
      source_.meta[key] = *options_.config;
    } else if (const auto config = source_.files.find("config.json"); config != source_.files.end()) {
      source_.meta[key] = MR_TRY(ReadConfigFile(*source_.folder.store, config->second, call_));
    }
    for (const auto& [file, info] : source_.files) {
      if (file != kLatest && !file.ends_with(".py")) AddModelFile(source_, file, file);
    }
    return {};
  }

  /// Returns the files of all ranks with this suffix, in the order of the ranks.
  Result<std::vector<std::string>> FilesOfRanks(std::string_view suffix) const {
    std::map<std::size_t, std::string> by_rank;
    Status status;
    ForEachFile([&](const std::string& name) {
      const auto rank = NumberBehind(name, "zero_pp_rank_");
      if (!rank || !name.ends_with(suffix)) return;
      if (!by_rank.emplace(*rank, save_ + name).second)
        status = Fail(Code::kCorrupt, "{} has {} and {}: files of two saves are mixed", source_.name, by_rank[*rank],
                      save_ + name);
    });
    MR_TRY(std::move(status));
    std::vector<std::string> files;
    for (auto& [rank, file] : by_rank) {
      if (rank != files.size()) {
        return Fail(Code::kNotFound, "{} has no zero_pp_rank_{}_mp_rank_00{}: copy the files of all machines",
                    source_.name, files.size(), suffix);
      }
      files.push_back(std::move(file));
    }
    return files;
  }

  Result<std::vector<std::string>> ModelFiles(bool shares) const {
    std::vector<std::string> files;
    if (shares) {
      files = MR_TRY(FilesOfRanks(kModelStates));
    } else if (const std::string whole = save_ + std::string(kWholeModel); source_.files.contains(whole)) {
      files.push_back(whole);
    }
    if (!files.empty()) return files;
    return Fail(Code::kNotFound, "{}/{} has no {}; copy the whole folder of the save", source_.name, save_,
                shares ? "zero_pp_rank_0_mp_rank_00_model_states.pt" : kWholeModel);
  }

  Status CheckRanks(const std::vector<DeepSpeedOptimizer>& optimizers) const {
    for (const DeepSpeedOptimizer& optimizer : optimizers) {
      if (optimizer.ranks != optimizers.size()) {
        return Fail(Code::kNotFound,
                    "{} has *{} of {} ranks, but {} saved it: copy the files of all machines, and "
                    "none of another save",
                    source_.name, kOptimStates, optimizers.size(), optimizer.ranks);
      }
      if (optimizer.stage != optimizers[0].stage)
        return Fail(Code::kCorrupt, "{}: files of two saves are mixed: their ZeRO stages differ", source_.name);
    }
    return {};
  }

  /// Adds a tensor without its bytes.
  Status AddTensor(const std::string& name, TensorMeta meta) {
    if (!source_.tensors.emplace(name, std::move(meta)).second)
      return Fail(Code::kCorrupt, "{}: {} is there twice", source_.name, name);
    return {};
  }
  static std::string ModelName(const std::string& parameter) { return std::string(kModelGroup) + PathPart(parameter); }

  /// Adds a tensor for each parameter, whose elements are in the flat tensors of the ranks.
  Status AddFlat(const std::string& prefix, const std::vector<ZeroGroup>& groups, bool shares,
                 const std::vector<const std::vector<PlacedTensor>*>& ranks) {
    FlatSizes sizes;
    std::optional<DType> dtype;
    for (const auto* flats : ranks) {
      sizes.emplace_back();
      for (const PlacedTensor& flat : *flats) {
        if (dtype.value_or(flat.meta.dtype) != flat.meta.dtype)
          return Fail(Code::kCorrupt, "{}: {}: the ranks' types differ", source_.name, prefix);
        dtype = flat.meta.dtype;
        sizes.back().push_back(flat.meta.elements());
      }
    }
    auto runs = shares ? RunsOfStage3(groups, sizes) : RunsOfStage2(groups, sizes);
    if (!runs) return Fail(runs.error().Context(fmt::format("{}: {}", source_.name, prefix)));
    for (const ZeroGroup& group : groups)
      for (const ZeroParameter& parameter : group)
        MR_TRY(AddTensor(prefix + PathPart(parameter.name), {dtype.value_or(DType::kF32), parameter.shape}));
    for (const ZeroRun& run : *runs) {
      const ZeroParameter& parameter = groups[run.group][run.parameter];
      const PlacedTensor& flat = (*ranks[run.rank])[run.flat];
      SourceBox box{
          prefix + PathPart(parameter.name), {}, flat.file, flat.offset + run.offset * DTypeBytes(flat.meta.dtype), {}};
      if (run.elements < parameter.elements) {
        box.begin = run.begin;
        box.elements = run.elements;
      }
      source_.boxes.push_back(std::move(box));
    }
    return {};
  }

  Status AddParameters(const DeepSpeedModel& model, const std::vector<DeepSpeedOptimizer>& optimizers) {
    if (optimizers.empty()) {
      source_.notes.emplace_back("ZeRO was off: the weights are imported, the optimizer's state is not");
      return {};
    }
    const bool shares = optimizers[0].stage == 3;
    std::vector<const std::vector<PlacedTensor>*> weights;
    for (const DeepSpeedOptimizer& optimizer : optimizers) weights.push_back(&optimizer.weights);
    MR_TRY(AddFlat(std::string(kModelGroup), model.groups, shares, weights));
    for (const auto& [key, flats] : optimizers[0].states) {
      std::vector<const std::vector<PlacedTensor>*> ranks;
      for (const DeepSpeedOptimizer& optimizer : optimizers) {
        const auto found = optimizer.states.find(key);
        if (found == optimizer.states.end())
          return Fail(Code::kCorrupt, "{}: the optimizer's {} is missing in a rank's file", source_.name, key);
        ranks.push_back(&found->second);
      }
      MR_TRY(AddFlat(fmt::format("{}{}/", kOptimizerGroup, key), model.groups, shares, ranks));
    }
    if (optimizers[0].states.empty()) source_.notes.emplace_back("the files have no optimizer's moments");
    return {};
  }

  /// Adds the parameters that were not trained. In stage 3 every rank's file has a share of each.
  Status AddFrozen(const DeepSpeedModel& model, const std::vector<std::string>& files, bool shares) {
    if (!shares || model.frozen.empty()) {
      for (const ZeroParameter& parameter : model.frozen) {
        const auto found = model.frozen_fragments.find(parameter.name);
        if (found == model.frozen_fragments.end() || found->second.meta.shape != parameter.shape)
          return Fail(Code::kCorrupt, "{}: the frozen {} is missing", source_.name, parameter.name);
        MR_TRY(AddWhole(parameter.name, found->second));
      }
      return {};
    }
    std::vector<std::vector<PlacedTensor>> flats(files.size());
    for (std::size_t rank = 0; rank < files.size(); ++rank) {
      DeepSpeedModel other;
      if (rank > 0) other = MR_TRY(ReadDeepSpeedModel(source_, files[rank], call_));
      for (const ZeroParameter& parameter : model.frozen) {
        const auto& fragments = rank > 0 ? other.frozen_fragments : model.frozen_fragments;
        const auto found = fragments.find(parameter.name);
        if (found == fragments.end() || !found->second.strides.empty())
          return Fail(Code::kCorrupt, "{}: {} has no share of the frozen {}", source_.name, files[rank],
                      parameter.name);
        flats[rank].push_back(found->second);
      }
    }
    // One flat tensor for each parameter, which may have a type of its own.
    for (std::size_t i = 0; i < model.frozen.size(); ++i) {
      std::vector<std::vector<PlacedTensor>> of_one;
      std::vector<const std::vector<PlacedTensor>*> ranks;
      for (const auto& of_rank : flats) of_one.push_back({of_rank[i]});
      for (const auto& of_rank : of_one) ranks.push_back(&of_rank);
      MR_TRY(AddFlat(std::string(kModelGroup), {{model.frozen[i]}}, true, ranks));
    }
    return {};
  }

  Status AddWhole(const std::string& name, const PlacedTensor& tensor) {
    MR_TRY(AddTensor(ModelName(name), tensor.meta));
    if (tensor.meta.elements() > 0)
      source_.boxes.push_back({ModelName(name), {}, tensor.file, tensor.offset, tensor.strides});
    return {};
  }

  /// Adds buffers, parameters that only the module has, and second names of parameters. In stage 3 the module has
  /// placeholders in place of parameters.
  Status AddRest(const DeepSpeedModel& model, bool has_placeholders) {
    for (const auto& [name, tensor] : model.module) {
      if (has_placeholders && !model.buffers.contains(name)) continue;
      MR_TRY(AddWhole(name, tensor));
    }
    std::map<std::string, std::string> second;  // second name → first one, in the checkpoint
    for (const auto& [name, of] : model.shared)
      if (source_.tensors.contains(ModelName(of))) second.emplace(ModelName(name), ModelName(of));
    std::map<std::string, std::vector<SourceBox>> boxes;
    for (const auto& [name, of] : second) boxes[of];
    for (const SourceBox& box : source_.boxes)
      if (const auto found = boxes.find(box.tensor); found != boxes.end()) found->second.push_back(box);
    for (const auto& [name, of] : second) {
      MR_TRY(AddTensor(name, source_.tensors.at(of)));
      if (source_.boxes.size() + boxes.at(of).size() > kMaxBoxes)
        return Fail(Code::kResourceExhausted, "{}: the parameters have too many names", source_.name);
      for (SourceBox box : boxes.at(of)) {
        box.tensor = name;
        source_.boxes.push_back(std::move(box));
      }
    }
    return {};
  }

  void AddValues(const DeepSpeedModel& model, const std::vector<DeepSpeedOptimizer>& optimizers) {
    source_.step = model.step;
    Json values = Json::object();
    if (model.step) values["step"] = *model.step;
    if (!optimizers.empty() && optimizers[0].steps) values["optimizer/step"] = *optimizers[0].steps;
    if (!values.empty()) source_.meta[std::string(kMetaValues)] = std::move(values);
  }

  const SourceOptions& options_;
  const object::Call call_;
  ImportSource source_;
  std::string save_;  ///< the subfolder with its slash; empty if the folder itself is a save
};

}  // namespace

Result<ImportSource> OpenDeepSpeedFolder(const object::Location& folder, const SourceOptions& options,
                                         object::Call call) {
  return DeepSpeedFolder(folder, options, std::move(call)).Read();
}

bool IsDeepSpeedFolder(const std::map<std::string, object::ObjectInfo>& files) {
  return files.contains(std::string(kLatest)) ||
         std::ranges::any_of(files, [](const auto& file) { return file.first.ends_with(kModelStates); });
}

}  // namespace millrace::checkpoint
