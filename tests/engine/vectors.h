// Models and expected tensors that transformers wrote as safetensors.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/engine/config/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {

inline std::filesystem::path Folder(std::string_view name) {
  const char* source = std::getenv("MILLRACE_SOURCE");
  return std::filesystem::path(source != nullptr ? source : ".") / "tests/engine/testdata" / name;
}

/// How exact float32 is, of a tensor's norm. A loop that a sanitizer watches has no vectors, so its sum has one
/// accumulator instead of many, and twice the error.
#ifdef __SANITIZE_ADDRESS__
inline constexpr double kFloatTolerance = 1e-5;
#else
inline constexpr double kFloatTolerance = 5e-6;
#endif

using Tensors = std::map<std::string, at::Tensor>;

/// A whole safetensors file: 8 bytes of header length, a JSON header, data.
inline Result<Tensors> LoadSafetensors(const std::filesystem::path& path) {
  const std::string file = MR_TRY(ReadFile(path));
  const auto header_bytes = LoadLittle<std::uint64_t>(AsBytes(file).data());
  const Json header = MR_TRY(ParseJson(std::string_view(file).substr(8, header_bytes), path.native()));
  Tensors tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto type = MR_TRY(ParseScalarType(entry["dtype"].get<std::string>()));
    const auto offsets = entry["data_offsets"].get<std::vector<std::uint64_t>>();
    at::Tensor tensor = at::empty(entry["shape"].get<std::vector<std::int64_t>>(), type);
    MR_TRY(CopyInto(tensor, type, AsBytes(file).subspan(8 + header_bytes + offsets[0], offsets[1] - offsets[0])));
    tensors[name] = tensor;
  }
  return tensors;
}

/// Makes the model of a folder and fills all its weights. `changes`: keys of the configuration to set. `stages`: as
/// those of ModelShare.
/// Errors: kNotFound if the file lacks a weight; kInvalidArgument if it has others.
inline Result<std::unique_ptr<Model>> LoadModel(const std::filesystem::path& folder, at::ScalarType dtype,
                                                const Json& changes = Json::object(),
                                                std::vector<ModelStage> stages = {}) {
  Json json = MR_TRY(ParseJson(MR_TRY(ReadFile(folder / "config.json")), "config.json"));
  json.update(changes);
  auto model = MR_TRY(
      MakeModel(MR_TRY(ParseModelConfig(json, "config.json")), dtype, at::kCPU, 1, {.stages = std::move(stages)}));
  Tensors weights = MR_TRY(LoadSafetensors(folder / "model.safetensors"));
  for (const NamedParameter& parameter : model->Parameters()) {
    const auto found = weights.find(parameter.name);
    if (found == weights.end()) return Fail(Code::kNotFound, "no weight {}", parameter.name);
    (parameter.transposed ? parameter.tensor.t() : parameter.tensor).copy_(found->second);
    weights.erase(found);
  }
  if (!weights.empty()) return Fail(Code::kInvalidArgument, "unexpected weight {}", weights.begin()->first);
  return model;
}

/// Returns the norm of the difference, of the norm of `want`. A norm below 1 counts as 1: gradients that are zero by
/// mathematics, such as those of key biases, are rounding errors here and there.
inline double ErrorOf(const at::Tensor& got, const at::Tensor& want) {
  return (got - want).to(at::kDouble).norm().item<double>() / std::max(1.0, want.to(at::kDouble).norm().item<double>());
}

inline void ExpectClose(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  EXPECT_LE(ErrorOf(got, want), tolerance) << what << ", norm " << want.to(at::kDouble).norm().item<double>();
}

/// What ErrorOf() may be. In bfloat16 it depends on how far transformers' bfloat16 is from its float32.
class Tolerances {
 public:
  /// `exact`: in float32.
  static Result<Tolerances> Load(const std::filesystem::path& folder, at::ScalarType dtype, double exact) {
    Tolerances loaded;
    loaded.exact_ = exact;
    if (folder.filename() == "glm4") loaded.chance_ = 1.5e-2;
    if (dtype == at::kFloat) return loaded;
    const Json errors = MR_TRY(ParseJson(MR_TRY(ReadFile(folder / "bf16.json")), "bf16.json"));
    loaded.errors_ = errors.get<std::map<std::string, double>>();
    return loaded;
  }
  /// Returns the error that a tensor may have.
  double Of(const std::string& name) const { return errors_.empty() ? exact_ : 1.5 * OwnOf(name) + chance_; }
  /// Returns the error that the loss may have: three standard errors of the sum over tokens, whose errors have either
  /// sign. The largest measured error was 1.9 of them.
  double OfLoss(const std::string& name) const { return errors_.empty() ? exact_ : 3 * OwnOf(name); }
  /// Returns the error that all tensors whose names begin with `prefix` may have together: the root of the sum of the
  /// squares. Measured errors are 0.73 to 1.23 times those of transformers. Products that were added in bfloat16 made
  /// them 1.5 to 1.7 times in GPT-2, GPT-J and BERT.
  double OfAll(std::string_view prefix) const {
    if (errors_.empty()) return std::numeric_limits<double>::infinity();
    double squares = 0;
    for (const auto& [name, error] : errors_) squares += name.starts_with(prefix) ? error * error : 0;
    return 1.4 * std::sqrt(squares);
  }

 private:
  double OwnOf(const std::string& name) const {
    const auto found = errors_.find(name);
    return found != errors_.end() ? found->second : 0;  // not there: a parameter without a gradient
  }

  /// Rounding errors of a tensor of 2 to 24 elements are a matter of chance: beyond 1.5 times, the most that was
  /// measured is 0.0137 of 8 elements in glm4, and 0.0085 of 4 elements elsewhere.
  double chance_ = 1e-2;
  double exact_ = 0;
  std::map<std::string, double> errors_;  ///< of transformers, by tensor; none: float32
};

/// Compares the gradient of every parameter with `expected`. A parameter that is not there has a gradient of zero.
/// `prefix`: of the names of the tolerances.
inline void ExpectGradients(Model& model, const Tensors& expected, const Tolerances& tolerances,
                            const std::string& prefix = "") {
  double squares = 0;
  for (const NamedParameter& parameter : model.Parameters()) {
    const std::string name = "grad/" + parameter.name;
    const auto found = expected.find(name);
    const at::Tensor got = parameter.transposed ? parameter.gradient.t() : parameter.gradient;
    const at::Tensor want = found != expected.end() ? found->second : at::zeros_like(got);
    ExpectClose(got, want, tolerances.Of(prefix + name), name);
    squares += std::pow(ErrorOf(got, want), 2);
  }
  EXPECT_LE(std::sqrt(squares), tolerances.OfAll(prefix + "grad/")) << "all gradients";
}

}  // namespace millrace::engine
