#include "millrace/checkpoint/convert/megatron/megatron_source.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "millrace/base/text.h"
#include "millrace/checkpoint/convert/huggingface/hf_model.h"
#include "millrace/checkpoint/convert/megatron/megatron_model.h"
#include "millrace/checkpoint/convert/megatron/megatron_names.h"
#include "millrace/checkpoint/convert/megatron/stored_fragment.h"
#include "millrace/checkpoint/convert/tensors/meta_names.h"
#include "millrace/checkpoint/convert/torch/dcp_names.h"
#include "millrace/checkpoint/convert/torch/dcp_source.h"
#include "millrace/checkpoint/convert/torch/torch_file.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {
namespace {

using ValueKind = Pickle::ValueKind;
using Value = Pickle::Value;

constexpr std::string_view kTracker = "latest_checkpointed_iteration.txt", kFormatFile = "metadata.json";
constexpr std::string_view kCommonFile = "common.pt", kCommonEntry = "common_state/shard_0_1";
constexpr std::string_view kStateEntry = "optimizer.state.", kBucketEntry = "optimizer.distributed.";
/// The largest tracker, and the largest metadata.json. Guesses: real ones have some dozen bytes.
constexpr std::uint64_t kMaxTracker = 64, kMaxFormat = 64 * kKiB;
/// The most boxes of all tensors. A guess: a model of 100 layers and 100 heads has about 300,000.
constexpr std::size_t kMaxParts = 100'000'000;

/// Values that the import reads from the common state. Megatron writes there what all ranks share.
struct CommonState {
  std::optional<MegatronModel> model;
  std::optional<std::uint64_t> iteration;
  std::optional<std::uint64_t> optimizer_steps;
  Status unknown_model;  ///< why `model` is empty
};

class CommonReader {
 public:
  explicit CommonReader(const Pickle& pickle) : pickle_(pickle) {}

  CommonState Read(const Value& root) const {
    CommonState common;
    if (const Value* arguments = pickle_.Member(root, "args"); arguments != nullptr) {
      auto model = ModelOfArguments(pickle_, *arguments);
      if (model) {
        common.model = *std::move(model);
      } else {
        common.unknown_model = Fail(model.error());
      }
    } else {
      common.unknown_model = Fail(Code::kNotFound,
                                  "the run's arguments are not in it (NeMo and Megatron-Bridge keep "
                                  "them elsewhere): give the model's own configuration with --config config.json");
    }
    common.iteration = Number(pickle_.Member(root, "iteration"));
    common.optimizer_steps = StepsOf(pickle_.Member(root, "optimizer"));
    return common;
  }

 private:
  std::optional<std::uint64_t> Number(const Value* value) const {
    if (value == nullptr || value->kind != ValueKind::kInt || value->number < 0) return std::nullopt;
    return static_cast<std::uint64_t>(value->number);
  }
  /// The steps of the optimizer: of its first group of parameters, or common to all.
  std::optional<std::uint64_t> StepsOf(const Value* optimizer) const {
    if (optimizer == nullptr) return std::nullopt;
    if (const Value* inner = pickle_.Member(*optimizer, "optimizer")) optimizer = inner;
    if (const Value* state = pickle_.Member(*optimizer, "state")) {
      if (const auto steps = Number(pickle_.Member(*state, "common_step"))) return steps;
    }
    const Value* groups = pickle_.Member(*optimizer, "param_groups");
    if (groups == nullptr || groups->kind != ValueKind::kList || groups->items.empty()) return std::nullopt;
    return Number(pickle_.Member(pickle_[groups->items[0]], "step"));
  }

  const Pickle& pickle_;
};

/// The shapes of tensors that are stored in another shape, by name: mcore_data of .metadata.
Status ReadShapes(const Pickle& metadata, std::map<std::string, std::vector<std::int64_t>>& shapes) {
  const Value* data = metadata.Member(metadata.root(), "mcore_data");
  if (data == nullptr || data->kind != ValueKind::kDict) return {};
  for (std::size_t i = 0; i + 1 < data->items.size(); i += 2) {
    const Value& name = metadata[data->items[i]];
    const Value* shape = metadata.Member(metadata[data->items[i + 1]], "nd_reformulated_orig_global_shape");
    if (name.kind != ValueKind::kText || shape == nullptr || shape->kind == ValueKind::kNone) continue;
    if (metadata.IsCall(*shape, "torch.Size") && metadata.Arguments(*shape).size() == 1)
      shape = &metadata[metadata.Arguments(*shape)[0]];
    std::vector<std::int64_t> sizes;
    for (const Pickle::Id id : shape->items) {
      if (metadata[id].kind != ValueKind::kInt || metadata[id].number <= 0)
        return Fail(Code::kCorrupt, "{}: its shape is not a tuple of ints", name.text);
      sizes.push_back(metadata[id].number);
    }
    MR_TRY(TensorMeta({DType::kF64, sizes}).Check(name.text));
    shapes[name.text] = std::move(sizes);
  }
  return {};
}

/// Gives the tensors of a folder Hugging Face's names.
class MegatronMapper {
 public:
  MegatronMapper(ImportSource& from, const MegatronModel& model,
                 const std::map<std::string, std::vector<std::int64_t>>& shapes)
      : from_(from), model_(model), shapes_(shapes) {}

  /// Replaces from.tensors and from.boxes.
  Status Map() {
    for (SourceBox& box : from_.boxes) boxes_of_[box.tensor].push_back(&box);
    for (const auto& [name, meta] : from_.tensors) {
      Status mapped = MapTensor(name, meta);
      if (!mapped) return Fail(mapped.error().Context(fmt::format("{}: {}", from_.name, name)));
    }
    from_.tensors = std::move(tensors_);
    from_.boxes = std::move(boxes_);
    if (!transposed_.empty()) from_.meta[std::string(kMetaTransposed)] = transposed_;
    return {};
  }
  bool has_states() const { return has_states_; }
  bool has_buckets() const { return has_buckets_; }

 private:
  /// A tensor of the folder in its own shape.
  struct OwnTensor {
    std::string group;  ///< "model/" or "optimizer/exp_avg/"
    MegatronName name;
    std::vector<std::int64_t> shape;
    bool is_stacked = false;  ///< whether dimension 0 counts layers
  };

  Status MapTensor(const std::string& name, const TensorMeta& meta) {
    if (name.find("_extra_state") != name.npos) return {};
    if (name.starts_with(kBucketEntry) || name.find("." + std::string(kBucketEntry)) != name.npos) {
      has_buckets_ = true;
      return {};
    }
    OwnTensor own = MR_TRY(Describe(name, meta));
    if (own.group.empty()) return {};
    const std::size_t row_dimension = own.is_stacked ? 1 : 0;
    if (own.shape.size() <= row_dimension ||
        (own.is_stacked && static_cast<std::uint64_t>(own.shape[0]) != model_.layers))
      return Fail(Code::kCorrupt, "the tensor's shape does not fit a model of {} layers", model_.layers);
    const auto rows = static_cast<std::uint64_t>(own.shape[row_dimension]);
    for (const MappedTensor& mapped : MR_TRY(MapMegatronTensor(model_, own.name, rows))) {
      TensorMeta target{meta.dtype, {static_cast<std::int64_t>(mapped.rows)}};
      target.shape.insert(target.shape.end(), own.shape.begin() + static_cast<std::ptrdiff_t>(row_dimension) + 1,
                          own.shape.end());
      MR_TRY(AddTargets(own, mapped, target));
      MR_TRY(AddParts(name, own, mapped));
    }
    return {};
  }

  Result<OwnTensor> Describe(const std::string& name, const TensorMeta& meta) {
    OwnTensor own{.group = std::string(kModelGroup), .shape = meta.shape};
    std::string_view parameter = name;
    // Several optimizers, each with its own parameters, are called chained_0, chained_1, ….
    const std::size_t chain = parameter.starts_with("chained_") ? parameter.find('.') + 1 : 0;
    if (parameter.substr(chain).starts_with(kStateEntry)) {
      parameter.remove_prefix(chain + kStateEntry.size());
      const std::size_t end = parameter.find('.');
      if (end == parameter.npos) return Fail(Code::kCorrupt, "a state of no parameter");
      own.group = fmt::format("{}{}/", kOptimizerGroup, PathPart(parameter.substr(0, end)));
      parameter.remove_prefix(end + 1);
      has_states_ = true;
    } else if (parameter.starts_with("optimizer") || parameter.starts_with("rng_state") ||
               parameter.starts_with("rerun_state")) {
      own.group.clear();
      return own;
    }
    own.name = ParseMegatronName(parameter);
    if (own.name.layer.value_or(0) >= model_.layers)
      return Fail(Code::kCorrupt, "the model has {} layers", model_.layers);
    own.is_stacked = own.name.is_of_layer && !own.name.layer;
    if (const auto shape = shapes_.find(name); shape != shapes_.end()) own.shape = shape->second;
    return own;
  }

  std::string TargetName(const OwnTensor& own, const MappedTensor& mapped, std::uint64_t layer) const {
    return own.name.is_of_layer ? LayerPrefix(model_.family, layer) + mapped.name : mapped.name;
  }

  Status AddTargets(const OwnTensor& own, const MappedTensor& mapped, const TensorMeta& target) {
    const std::uint64_t first = own.name.layer.value_or(0);
    for (std::uint64_t i = 0; i < (own.is_stacked ? model_.layers : 1); ++i) {
      const std::string name = TargetName(own, mapped, first + i);
      if (!tensors_.emplace(own.group + name, target).second) return Fail(Code::kCorrupt, "two tensors are {}", name);
      if (mapped.transposed && own.group == kModelGroup) transposed_.push_back(name);
    }
    return {};
  }

  Status AddParts(const std::string& name, const OwnTensor& own, const MappedTensor& mapped) {
    const auto stored = boxes_of_.find(name);
    if (stored == boxes_of_.end()) return {};
    const TensorMeta& meta = from_.tensors.at(name);
    for (const SourceBox* box : stored->second) {
      StoredFragment fragment{*box, DTypeBytes(meta.dtype)};
      if (shapes_.contains(name)) fragment.part = MR_TRY(UnflattenedPart(*box, meta.shape, own.shape));
      if (Status inside = CheckBox(fragment.part.box, own.shape); !inside) return inside;
      if (fragment.part.box.whole())
        fragment.part.box = {std::vector<std::uint64_t>(own.shape.size()), {own.shape.begin(), own.shape.end()}};
      CutFragment(fragment, own.is_stacked, mapped.spans, [&](std::uint64_t layer, SourceBox part) {
        part.tensor = own.group + TargetName(own, mapped, own.name.layer.value_or(layer));
        boxes_.push_back(std::move(part));
      });
      if (boxes_.size() > kMaxParts) return Fail(Code::kResourceExhausted, "the model has too many parts");
    }
    return {};
  }

  ImportSource& from_;
  const MegatronModel& model_;
  const std::map<std::string, std::vector<std::int64_t>>& shapes_;
  std::map<std::string, std::vector<const SourceBox*>, std::less<>> boxes_of_;
  std::map<std::string, TensorMeta> tensors_;
  std::vector<SourceBox> boxes_;
  std::vector<std::string> transposed_;
  bool has_states_ = false, has_buckets_ = false;
};

class MegatronFolder {
 public:
  MegatronFolder(object::Location folder, const SourceOptions& options, object::Call call)
      : folder_(std::move(folder)), options_(options), call_(std::move(call)) {}

  Result<ImportSource> Read() {
    MR_TRY(FindSave());
    MR_TRY(CheckFormat());
    MR_TRY(ReadCommonFile());
    DcpVisitor visitor{
        .on_metadata = [this](const Pickle& metadata) { return ReadShapes(metadata, shapes_); },
        .on_value = [this](const std::string& name,
                           RandomBytes& archive) { return name == kCommonEntry ? ReadCommon(archive) : Status(); }};
    ImportSource source = MR_TRY(OpenDcpFolder(folder_, call_, &visitor));
    source.format = ForeignFormat::kMegatron;
    source.meta = Json::object();
    const MegatronModel model = MR_TRY(TakeModel());
    MegatronMapper mapper(source, model, shapes_);
    MR_TRY(mapper.Map());
    source.meta[std::string(kMetaModelConfig)] = ConfigOf(model, source);
    AddValues(source);
    AddNotes(mapper, model, source);
    NormalizeModel(source);
    return source;
  }

 private:
  /// Goes to the subfolder that the tracker names, if there is a tracker.
  Status FindSave() {
    auto tracker = MR_TRY(object::GetAll(*folder_.store, folder_.key + std::string(kTracker), kMaxTracker, call_));
    if (!tracker) return {};
    const std::string_view text = Trim(tracker->bytes);
    std::uint64_t iteration = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), iteration);
    if (text != "release" && (error != std::errc() || end != text.data() + text.size()))
      return Fail(Code::kCorrupt, "{}/{} names no iteration", NameOf(folder_), kTracker);
    folder_.key += text == "release" ? "release/" : fmt::format("iter_{:07}/", iteration);
    return {};
  }

  Status CheckFormat() const {
    const std::string what = fmt::format("{}/{}", NameOf(folder_), kFormatFile);
    auto content = MR_TRY(object::GetAll(*folder_.store, folder_.key + std::string(kFormatFile), kMaxFormat, call_));
    if (!content) {
      return Fail(Code::kNotFound,
                  "{} does not exist: no checkpoint of Megatron's dist_checkpointing. Convert an older "
                  "mp_rank_00/model_optim_rng.pt with Megatron's --ckpt-convert-format torch_dist",
                  what);
    }
    const Json parsed = MR_TRY(ParseJson(content->bytes, what));
    const std::string backend = MR_TRY(JsonString(parsed, "sharded_backend"));
    if (backend == "torch_dist") return {};
    return Fail(Code::kUnsupported,
                "{}: the format {} is not imported, torch_dist is: load it in Megatron, and save it "
                "with --ckpt-format torch_dist",
                what, backend);
  }

  Status ReadCommonFile() {
    auto info = MR_TRY(object::Head(*folder_.store, folder_.key + std::string(kCommonFile), call_));
    if (!info) return {};
    const std::uint64_t size = info->size;
    ObjectBytes bytes(*folder_.store, *std::move(info), 0, size, call_);
    return ReadCommon(bytes);
  }
  /// Reads the common state: a dict, or a list with this dict.
  Status ReadCommon(RandomBytes& bytes) {
    const TorchArchive archive = MR_TRY(TorchArchive::Open(bytes, PickledObjects::kNamed));
    const Pickle& pickle = archive.pickle();
    const Value* root = &pickle.root();
    if (root->kind == ValueKind::kList && root->items.size() == 1) root = &pickle[root->items[0]];
    common_ = CommonReader(pickle).Read(*root);
    return {};
  }

  Result<MegatronModel> TakeModel() {
    if (options_.config) {
      MegatronModel model = MR_TRY(ModelOfConfig(*options_.config));
      return model;
    }
    if (!common_) {
      return Fail(Code::kNotFound, "{} has no {}: give the model's own configuration with --config config.json",
                  NameOf(folder_), kCommonFile);
    }
    if (!common_->model) return Fail(common_->unknown_model.error().Context(NameOf(folder_)));
    return *std::move(common_->model);
  }

  /// The configuration; one that was made of the arguments gets the weights' type.
  Json ConfigOf(const MegatronModel& model, const ImportSource& source) const {
    Json config = model.config;
    const auto embedding =
        std::ranges::find_if(source.tensors, [](const auto& tensor) { return tensor.first.starts_with(kModelGroup); });
    if (options_.config || embedding == source.tensors.end()) return config;
    const DType dtype = embedding->second.dtype;
    config["torch_dtype"] = dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
    return config;
  }

  void AddValues(ImportSource& source) const {
    Json values = Json::object();
    if (common_ && common_->iteration) {
      source.step = common_->iteration;
      values["step"] = *common_->iteration;
    }
    if (common_ && common_->optimizer_steps) values["optimizer/step"] = *common_->optimizer_steps;
    if (!values.empty()) source.meta[std::string(kMetaValues)] = std::move(values);
  }

  static void AddNotes(const MegatronMapper& mapper, const MegatronModel& model, ImportSource& source) {
    if (mapper.has_buckets()) {
      source.notes.emplace_back(
          "the optimizer's state is stored by buckets, not by parameters, and is not imported: "
          "to keep it, let Megatron save with --dist-ckpt-optim-fully-reshardable");
    } else if (!mapper.has_states()) {
      source.notes.emplace_back("the folder has no optimizer's state");
    }
    if (model.has_padding) {
      source.notes.push_back(
          fmt::format("the embedding keeps its {} rows, with Megatron's padding, since the folder "
                      "does not tell the size of the vocabulary: --config config.json tells it",
                      model.vocabulary));
    }
  }

  object::Location folder_;
  const SourceOptions& options_;
  const object::Call call_;
  std::optional<CommonState> common_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
};

}  // namespace

Result<ImportSource> OpenMegatronFolder(const object::Location& folder, const SourceOptions& options,
                                        object::Call call) {
  return MegatronFolder(folder, options, std::move(call)).Read();
}

bool IsMegatronFolder(const std::map<std::string, object::ObjectInfo>& files) {
  return files.contains(std::string(kTracker)) ||
         (files.contains(std::string(kDcpMetadataFile)) && files.contains(std::string(kFormatFile)));
}

}  // namespace millrace::checkpoint
