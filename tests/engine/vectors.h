// Models and expected tensors that transformers wrote as safetensors.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "millrace/base/files/files.h"
#include "millrace/engine/families/families.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {

inline std::filesystem::path Folder(std::string_view name) {
  const char* source = std::getenv("MILLRACE_SOURCE");
  return std::filesystem::path(source != nullptr ? source : ".") / "tests/engine/testdata" / name;
}

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

/// Makes the model of a folder and fills all its weights.
/// Errors: kNotFound if the file lacks a weight; kInvalidArgument if it has others.
inline Result<std::unique_ptr<Model>> LoadModel(const std::filesystem::path& folder, at::ScalarType dtype) {
  const Json json = MR_TRY(ParseJson(MR_TRY(ReadFile(folder / "config.json")), "config.json"));
  auto model = MR_TRY(MakeModel(MR_TRY(ParseModelConfig(json, "config.json")), dtype, at::kCPU, 1));
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

/// Compares by the norm of the difference. A norm below 1 counts as 1: gradients that are zero by mathematics, such as
/// those of key biases, are rounding errors here and there.
inline void ExpectClose(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double norm = want.to(at::kDouble).norm().item<double>();
  EXPECT_LE((got - want).to(at::kDouble).norm().item<double>(), tolerance * std::max(1.0, norm))
      << what << ", norm " << norm;
}

}  // namespace millrace::engine
