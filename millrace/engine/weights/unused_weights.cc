#include "millrace/engine/weights/unused_weights.h"

#include <algorithm>
#include <set>
#include <utility>

#include "millrace/base/bytes.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/weights/weight_names.h"

namespace millrace::engine {
namespace {

/// What a comparison of two tensors reads of each at once.
constexpr std::uint64_t kComparedBytes = 16 * kMiB;

Result<bool> SameElements(checkpoint::Reader& reader, const std::string& one, const std::string& other,
                          const object::Call& call) {
  const checkpoint::TensorMeta &a = reader.manifest().tensors.at(one), &b = reader.manifest().tensors.at(other);
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  const std::uint64_t width = checkpoint::DTypeBytes(a.dtype), elements = a.elements();
  const std::uint64_t at_once = std::min(elements, kComparedBytes / width);
  Buffer first(at_once * width), second(first.size());
  for (std::uint64_t done = 0; done < elements; done += at_once) {
    const std::uint64_t bytes = std::min(at_once, elements - done) * width;
    MR_TRY(reader.Read(one, done, first.span().first(bytes), call));
    MR_TRY(reader.Read(other, done, second.span().first(bytes), call));
    if (!std::ranges::equal(first.span().first(bytes), second.span().first(bytes))) return false;
  }
  return true;
}

class FolderCheck {
 public:
  FolderCheck(checkpoint::Reader& reader, const ModelConfig& config, const QuantizedWeights* quantized,
              const object::Call& call)
      : reader_(reader),
        manifest_(reader.manifest()),
        names_(FindFamily(config.family())->names),
        generates_(config.generates()),
        shape_(config.Shape()),
        call_(call) {
    for (const std::string& name : shape_.ParameterNames()) {
      if (auto found = FindModelWeight(manifest_, name)) used_.insert(*std::move(found));
    }
    if (quantized != nullptr) {
      for (const auto& [weight, matrix] : *quantized) {
        modules_.insert(weight.substr(0, weight.rfind('.')));
      }
    }
    has_prefix_ = manifest_.tensors.contains(Full(std::string(names_.prefix) + std::string(names_.embedding)));
  }

  Result<std::vector<std::string>> Run() {
    std::vector<std::string> unused;
    for (const auto& [tensor, meta] : manifest_.tensors) {
      if (!tensor.starts_with(checkpoint::kModelGroup) || used_.contains(tensor)) continue;
      const std::string name = tensor.substr(checkpoint::kModelGroup.size());
      if (IsComputed(name) || IsOfCodes(name)) continue;
      if (const std::string twin = TwinOf(name); !twin.empty()) {
        MR_TRY(CheckTwin(name, twin));
        continue;
      }
      const bool is_other_head = has_prefix_ && !name.starts_with(names_.prefix);
      if (generates_ && !is_other_head) {
        return Fail(Code::kUnsupported,
                    "{} has the weight {}, for which the model that its config.json describes has no place",
                    reader_.name(), name);
      }
      unused.push_back(name);
    }
    return unused;
  }

 private:
  static std::string Full(const std::string& name) { return std::string(checkpoint::kModelGroup) + name; }

  bool IsComputed(std::string_view name) const {
    return std::ranges::any_of(names_.computed, [&](std::string_view suffix) { return name.ends_with(suffix); });
  }

  /// Whether the tensor is of a module whose weight is quantized: its codes, and what belongs to them.
  bool IsOfCodes(const std::string& name) const {
    for (const std::string& full : {name, std::string(names_.prefix) + name}) {
      for (std::size_t dot = full.rfind('.'); dot != full.npos && dot > 0; dot = full.rfind('.', dot - 1)) {
        if (modules_.contains(full.substr(0, dot))) return true;
      }
    }
    return false;
  }

  /// Returns the tensor of which `name` is a second one in a tied model; empty if it is none.
  std::string TwinOf(const std::string& name) const {
    const auto& tied = names_.tied_names;
    if (!shape_.tied() || std::ranges::find(tied, std::string_view(name)) == tied.end()) return "";
    std::string twin = std::string(names_.prefix) + std::string(names_.embedding);
    if (name.ends_with(".bias")) {
      const auto head = std::ranges::find_if(shape_.head, [](const plan::Layer& layer) { return layer.tied; });
      twin = head->name + ".bias";
    }
    return FindModelWeight(manifest_, twin).value_or("");
  }

  Status CheckTwin(const std::string& name, const std::string& twin) {
    if (MR_TRY(SameElements(reader_, Full(name), twin, call_))) return {};
    return Fail(Code::kUnsupported,
                "{} has the weight {} with other elements than {}, but its config.json ties the two; set "
                "tie_word_embeddings to false there, or remove one of them",
                reader_.name(), name, twin.substr(checkpoint::kModelGroup.size()));
  }

  checkpoint::Reader& reader_;
  const checkpoint::Manifest& manifest_;
  const FolderNames& names_;
  const bool generates_;
  const plan::ModelShape shape_;
  const object::Call& call_;
  std::set<std::string> used_, modules_;
  bool has_prefix_ = false;
};

}  // namespace

Result<std::vector<std::string>> UnusedWeights(checkpoint::Reader& reader, const ModelConfig& config,
                                               const QuantizedWeights* quantized, const object::Call& call) {
  return FolderCheck(reader, config, quantized, call).Run();
}

}  // namespace millrace::engine
