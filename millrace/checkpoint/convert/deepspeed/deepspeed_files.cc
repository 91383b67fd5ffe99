#include "millrace/checkpoint/convert/deepspeed/deepspeed_files.h"

#include <algorithm>
#include <cmath>

#include "millrace/checkpoint/convert/torch/torch_file.h"

namespace millrace::checkpoint {
namespace {

using ValueKind = Pickle::ValueKind;
using Value = Pickle::Value;

/// The bounds of numbers in the files. Guesses, far above real runs.
constexpr std::uint64_t kMaxRanks = 1'000'000, kMaxOptimizerSteps = 1'000'000'000'000;

/// One open file. Collects the tensors that are wanted, and finds their places in few requests.
class DeepSpeedArchive {
 public:
  static Result<DeepSpeedArchive> Open(RandomBytes& bytes, std::string file) {
    TorchArchive archive = MR_TRY(TorchArchive::Open(bytes, PickledObjects::kNamed));
    return DeepSpeedArchive(bytes, std::move(archive), std::move(file));
  }

  const Pickle& pickle() const { return archive_.pickle(); }
  /// The items of a dict or an OrderedDict: key, value, key, value, …. Empty if it is neither.
  std::span<const Pickle::Id> Items(const Value* dict) const {
    if (dict == nullptr) return {};
    const bool ordered = pickle().IsCall(*dict, "collections.OrderedDict");
    if (dict->kind != ValueKind::kDict && !ordered) return {};
    return std::span(dict->items).subspan(ordered ? 2 : 0);
  }
  const Value* Find(const Value* dict, std::string_view key) const {
    const auto items = Items(dict);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2)
      if (pickle()[items[i]].kind == ValueKind::kText && pickle()[items[i]].text == key) return &pickle()[items[i + 1]];
    return nullptr;
  }
  /// Returns a number that may be the argument of an enumeration's class.
  std::optional<std::uint64_t> Number(const Value* value, std::uint64_t most) const {
    if (value != nullptr && value->kind == ValueKind::kCall && pickle().Arguments(*value).size() == 1)
      value = &pickle()[pickle().Arguments(*value)[0]];
    if (value == nullptr || value->kind != ValueKind::kInt || value->number < 0) return std::nullopt;
    const auto number = static_cast<std::uint64_t>(value->number);
    return number <= most ? std::optional(number) : std::nullopt;
  }
  Error Wrong(std::string_view what) const {
    return {Code::kCorrupt, fmt::format("{}: {} does not have the form that DeepSpeed writes", bytes_->name(), what)};
  }

  /// Wants the tensor under a name. Returns false if the value is not a tensor.
  Result<bool> Want(const std::string& name, const Value& value) {
    auto tensor = TensorOf(pickle(), value);
    if (!tensor) return Fail(tensor.error().Context(fmt::format("{}: {}", bytes_->name(), name)));
    if (!*tensor) return false;
    if (!wanted_.emplace(name, **std::move(tensor)).second)
      return Fail(Code::kCorrupt, "{}: {} is there twice", bytes_->name(), name);
    return true;
  }
  /// Returns the places of all wanted tensors. Blocks.
  Result<std::map<std::string, PlacedTensor>> Place(ImportSource& source) {
    const auto storages = MR_TRY(archive_.StoragesOf(wanted_));
    for (const auto& [key, storage] : storages)
      if (storage.crc32 != 0) source.checksums.push_back({file_, storage.offset, storage.size, storage.crc32});
    std::map<std::string, PlacedTensor> placed;
    for (auto& [name, tensor] : wanted_) {
      PlacedTensor& at = placed[name] = {std::move(tensor.meta), file_, tensor.offset, std::move(tensor.strides)};
      if (at.meta.elements() == 0) continue;
      const TorchArchive::Storage& storage = storages.at(tensor.storage);
      if (storage.size != tensor.storage_bytes)
        return Fail(Code::kCorrupt, "{}: storage {} has two sizes", bytes_->name(), tensor.storage);
      at.offset += storage.offset;
    }
    return placed;
  }
  /// Returns the value of a tensor with one float32. Blocks.
  Result<std::optional<double>> Scalar(const Value& value) const {
    auto tensor = MR_TRY(TensorOf(pickle(), value));
    if (!tensor || tensor->meta.elements() != 1 || tensor->meta.dtype != DType::kF32) return std::optional<double>();
    const auto storage = MR_TRY(archive_.StorageOf(*tensor));
    std::byte raw[4];
    MR_TRY(bytes_->ReadAt(storage.offset + tensor->offset, raw));
    const float number = std::bit_cast<float>(LoadLittle<std::uint32_t>(raw));
    return std::isfinite(number) ? std::optional<double>(number) : std::nullopt;
  }

 private:
  DeepSpeedArchive(RandomBytes& bytes, TorchArchive archive, std::string file)
      : bytes_(&bytes), archive_(std::move(archive)), file_(std::move(file)) {}
  RandomBytes* bytes_;
  TorchArchive archive_;
  std::string file_;
  std::map<std::string, TorchTensor> wanted_;
};

/// Reads a dict of names and shapes.
Result<ZeroGroup> ShapesOf(const DeepSpeedArchive& archive, const Value* dict) {
  const Pickle& pickle = archive.pickle();
  ZeroGroup group;
  const auto items = archive.Items(dict);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Value& name = pickle[items[i]];
    const Value* shape = &pickle[items[i + 1]];
    if (pickle.IsCall(*shape, "torch.Size") && pickle.Arguments(*shape).size() == 1)
      shape = &pickle[pickle.Arguments(*shape)[0]];
    const bool sequence = shape->kind == ValueKind::kTuple || shape->kind == ValueKind::kList;
    if (name.kind != ValueKind::kText || !sequence) return Fail(archive.Wrong("a parameter's shape"));
    TensorMeta meta{DType::kF32, {}};
    for (const Pickle::Id id : shape->items) {
      if (pickle[id].kind != ValueKind::kInt) return Fail(archive.Wrong("a parameter's shape"));
      meta.shape.push_back(pickle[id].number);
    }
    MR_TRY(meta.Check(name.text));
    group.push_back({name.text, meta.shape, meta.elements()});
  }
  return group;
}

Status ReadShapes(const DeepSpeedArchive& archive, const Value& root, DeepSpeedModel& model) {
  const Value* shapes = archive.Find(&root, "param_shapes");
  if (shapes != nullptr && shapes->kind == ValueKind::kList) {
    for (const Pickle::Id id : shapes->items) {
      ZeroGroup group = MR_TRY(ShapesOf(archive, &archive.pickle()[id]));
      model.groups.push_back(std::move(group));
    }
  } else if (!archive.Items(shapes).empty()) {  // DeepSpeed before 0.3.17: one group
    ZeroGroup group = MR_TRY(ShapesOf(archive, shapes));
    model.groups.push_back(std::move(group));
  }
  model.frozen = MR_TRY(ShapesOf(archive, archive.Find(&root, "frozen_param_shapes")));
  return {};
}

Status ReadNames(const DeepSpeedArchive& archive, const Value& root, DeepSpeedModel& model) {
  const Pickle& pickle = archive.pickle();
  if (const Value* buffers = archive.Find(&root, "buffer_names"); buffers != nullptr) {
    for (const Pickle::Id id : buffers->items)
      if (pickle[id].kind == ValueKind::kText) model.buffers.insert(pickle[id].text);
  }
  const Value* shared = archive.Find(&root, "shared_params");
  const auto add = [&](const Value& name, const Value& of) -> Status {
    if (name.kind != ValueKind::kText || of.kind != ValueKind::kText) return Fail(archive.Wrong("shared_params"));
    model.shared.emplace_back(name.text, of.text);
    return {};
  };
  const auto items = archive.Items(shared);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) MR_TRY(add(pickle[items[i]], pickle[items[i + 1]]));
  return {};
}

/// Wants all tensors of a dict, as PREFIX and their names.
Status WantAll(DeepSpeedArchive& archive, const Value* dict, const std::string& prefix) {
  const auto items = archive.Items(dict);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Value& name = archive.pickle()[items[i]];
    if (name.kind == ValueKind::kText) MR_TRY(archive.Want(prefix + name.text, archive.pickle()[items[i + 1]]));
  }
  return {};
}

/// Wants the flat tensors of a list, as PREFIX and their numbers.
Status WantList(DeepSpeedArchive& archive, const Value* list, const std::string& prefix) {
  if (list == nullptr || list->kind != ValueKind::kList) return Fail(archive.Wrong(prefix));
  for (std::size_t i = 0; i < list->items.size(); ++i) {
    if (!MR_TRY(archive.Want(fmt::format("{}/{}", prefix, i), archive.pickle()[list->items[i]])))
      return Fail(archive.Wrong(prefix));
  }
  return {};
}

/// The states of the flat tensors, by their numbers: `optimizer.state_dict()["state"]`, or a list of them.
Result<std::vector<const Value*>> StatesOf(const DeepSpeedArchive& archive, const Value* base) {
  std::vector<const Value*> states;
  if (base == nullptr) return states;
  if (base->kind == ValueKind::kList) {
    for (const Pickle::Id id : base->items) states.push_back(&archive.pickle()[id]);
    return states;
  }
  const auto items = archive.Items(archive.Find(base, "state"));
  states.resize(items.size() / 2);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto number = archive.Number(&archive.pickle()[items[i]], kMaxRanks);
    if (!number || *number >= states.size() || states[*number] != nullptr)
      return Fail(archive.Wrong("the optimizer's state"));
    states[*number] = &archive.pickle()[items[i + 1]];
  }
  return states;
}

/// Wants the states of the flat tensors, as "KEY/NUMBER". Returns the names of the states.
Result<std::set<std::string>> WantStates(DeepSpeedArchive& archive, const Value* base, DeepSpeedOptimizer& optimizer) {
  std::set<std::string> keys;
  const auto states = MR_TRY(StatesOf(archive, base));
  for (std::size_t number = 0; number < states.size(); ++number) {
    const auto items = archive.Items(states[number]);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const Value &key = archive.pickle()[items[i]], &value = archive.pickle()[items[i + 1]];
      if (key.kind != ValueKind::kText || key.text.empty() || key.text.find('/') != key.text.npos)
        return Fail(archive.Wrong("the optimizer's state"));
      if (key.text == "step") {
        if (const auto steps = archive.Number(&value, kMaxOptimizerSteps))
          optimizer.steps = static_cast<double>(*steps);
        if (const auto steps = MR_TRY(archive.Scalar(value))) optimizer.steps = steps;
        continue;
      }
      const auto tensor = MR_TRY(TensorOf(archive.pickle(), value));
      if (!tensor || tensor->meta.shape.size() != 1) continue;
      keys.insert(key.text);
      MR_TRY(archive.Want(fmt::format("{}/{}", key.text, number), value));
    }
  }
  // Optimizers that count their steps in their groups.
  const auto* groups = base != nullptr ? archive.Find(base, "param_groups") : nullptr;
  if (groups != nullptr && groups->kind == ValueKind::kList && !groups->items.empty()) {
    const Value* step = archive.Find(&archive.pickle()[groups->items[0]], "step");
    if (const auto steps = archive.Number(step, kMaxOptimizerSteps)) optimizer.steps = static_cast<double>(*steps);
  }
  return keys;
}

/// Takes the tensors "KEY/0", "KEY/1", … out of `placed`.
Result<std::vector<PlacedTensor>> TakeList(const DeepSpeedArchive& archive, const std::string& key,
                                           std::map<std::string, PlacedTensor>& placed) {
  std::vector<PlacedTensor> list;
  for (;;) {
    auto found = placed.extract(fmt::format("{}/{}", key, list.size()));
    if (found.empty()) return list;
    const PlacedTensor& tensor = found.mapped();
    if (tensor.meta.shape.size() != 1 || !tensor.strides.empty()) return Fail(archive.Wrong(key));
    list.push_back(std::move(found.mapped()));
  }
}

}  // namespace

Result<DeepSpeedModel> ReadDeepSpeedModel(ImportSource& source, const std::string& file, const object::Call& call) {
  const object::ObjectInfo& info = source.files.at(file);
  ObjectBytes bytes(*source.folder.store, info, 0, info.size, call);
  DeepSpeedArchive archive = MR_TRY(DeepSpeedArchive::Open(bytes, file));
  const Value& root = archive.pickle().root();
  const Value* module = archive.Find(&root, "module");
  if (module == nullptr) return Fail(archive.Wrong("its state"));
  if (archive.Items(module).empty()) {
    return Fail(Code::kUnsupported,
                "{} has no module: DeepSpeed's pipeline engine saved the model in parts; import what "
                "model.save_pretrained() or torch.save() of its state_dict() writes",
                bytes.name());
  }
  DeepSpeedModel model;
  MR_TRY(ReadShapes(archive, root, model));
  MR_TRY(ReadNames(archive, root, model));
  model.step = archive.Number(archive.Find(&root, "global_steps"), kMaxOptimizerSteps);
  model.model_parallel = archive.Number(archive.Find(&root, "mp_world_size"), kMaxRanks).value_or(1);
  // Only what is imported is placed, so that only its checksums are compared: parameters come from the optimizer.
  std::set<std::string> known;
  for (const ZeroGroup& group : model.groups)
    for (const ZeroParameter& parameter : group) known.insert(parameter.name);
  for (const ZeroParameter& parameter : model.frozen) known.insert(parameter.name);
  for (const auto& [name, of] : model.shared) known.insert(name);
  const auto items = archive.Items(module);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const Value& name = archive.pickle()[items[i]];
    if (name.kind == ValueKind::kText && !known.contains(name.text))
      MR_TRY(archive.Want("module/" + name.text, archive.pickle()[items[i + 1]]));
  }
  MR_TRY(WantAll(archive, archive.Find(&root, "frozen_param_fragments"), "frozen/"));
  for (auto& [name, tensor] : MR_TRY(archive.Place(source))) {
    const bool is_frozen = name.starts_with("frozen/");
    auto& to = is_frozen ? model.frozen_fragments : model.module;
    to.emplace(name.substr(name.find('/') + 1), std::move(tensor));
  }
  return model;
}

Result<DeepSpeedOptimizer> ReadDeepSpeedOptimizer(ImportSource& source, const std::string& file,
                                                  const object::Call& call) {
  const object::ObjectInfo& info = source.files.at(file);
  ObjectBytes bytes(*source.folder.store, info, 0, info.size, call);
  DeepSpeedArchive archive = MR_TRY(DeepSpeedArchive::Open(bytes, file));
  const Value* state = archive.Find(&archive.pickle().root(), "optimizer_state_dict");
  if (archive.Items(state).empty()) return Fail(archive.Wrong("optimizer_state_dict"));
  DeepSpeedOptimizer optimizer;
  // bf16_optimizer.py, which has stage 1, does not write the stage.
  optimizer.stage = static_cast<int>(archive.Number(archive.Find(state, "zero_stage"), 3).value_or(1));
  const Value* count = archive.Find(state, "partition_count");
  std::set<std::uint64_t> counts;
  if (count != nullptr && count->kind == ValueKind::kList) {
    for (const Pickle::Id id : count->items)
      counts.insert(archive.Number(&archive.pickle()[id], kMaxRanks).value_or(0));
  } else {
    counts.insert(archive.Number(count, kMaxRanks).value_or(0));
  }
  if (counts.size() != 1) {
    return Fail(Code::kUnsupported,
                "{}: its groups of parameters have different numbers of ranks: experts are divided "
                "in another way than the rest. Consolidate the model with DeepSpeed first",
                bytes.name());
  }
  optimizer.ranks = *counts.begin();
  const bool shares = optimizer.stage == 3;
  const char* weights = shares ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
  MR_TRY(WantList(archive, archive.Find(state, weights), "weights"));
  const Value* base = archive.Find(state, shares ? "optimizer_state_dict" : "base_optimizer_state");
  const auto keys = MR_TRY(WantStates(archive, base, optimizer));
  if (keys.contains("weights")) return Fail(archive.Wrong("the optimizer's state"));
  auto placed = MR_TRY(archive.Place(source));
  optimizer.weights = MR_TRY(TakeList(archive, "weights", placed));
  for (const std::string& key : keys) optimizer.states[key] = MR_TRY(TakeList(archive, key, placed));
  if (!placed.empty()) return Fail(archive.Wrong("the optimizer's state"));
  return optimizer;
}

}  // namespace millrace::checkpoint
