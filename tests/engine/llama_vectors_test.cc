// Our Llama against transformers' LlamaForCausalLM: logits, loss and every gradient of two random models (grouped
// heads; tied and untied head), also where documents share rows, that make_llama_vectors.py wrote as Hugging Face
// folders.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <span>

#include "millrace/base/files/files.h"
#include "millrace/engine/models/make_model.h"
#include "millrace/engine/parameters/scalar_types.h"

namespace millrace::engine {
namespace {

std::filesystem::path Folder(std::string_view name) {
  const char* source = std::getenv("MILLRACE_SOURCE");
  return std::filesystem::path(source != nullptr ? source : ".") / "tests/engine/testdata" / name;
}

using Tensors = std::map<std::string, at::Tensor>;

/// A whole safetensors file: 8 bytes of header length, a JSON header, data.
Result<Tensors> LoadSafetensors(const std::filesystem::path& path) {
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

struct Loaded {
  std::unique_ptr<Model> model;
  Tensors expected, packed;
};
Result<Loaded> Load(std::string_view name, at::ScalarType dtype) {
  const Json json = MR_TRY(ParseJson(MR_TRY(ReadFile(Folder(name) / "config.json")), "config.json"));
  Loaded loaded;
  loaded.model = MR_TRY(MakeModel(MR_TRY(ParseModelConfig(json, "config.json")), dtype, at::kCPU, 1));
  Tensors weights = MR_TRY(LoadSafetensors(Folder(name) / "model.safetensors"));
  for (const NamedParameter& parameter : loaded.model->Parameters()) {
    const auto found = weights.find(parameter.name);
    if (found == weights.end()) return Fail(Code::kNotFound, "no weight {}", parameter.name);
    parameter.tensor.copy_(found->second);
    weights.erase(found);
  }
  if (!weights.empty()) return Fail(Code::kInvalidArgument, "unexpected weight {}", weights.begin()->first);
  loaded.expected = MR_TRY(LoadSafetensors(Folder(name) / "expected.safetensors"));
  loaded.packed = MR_TRY(LoadSafetensors(Folder(name) / "packed.safetensors"));
  return loaded;
}

void ExpectClose(const at::Tensor& got, const at::Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double norm = want.to(at::kDouble).norm().item<double>();
  EXPECT_LE((got - want).to(at::kDouble).norm().item<double>(), tolerance * norm) << what << ", norm " << norm;
}

struct Case {
  std::string folder;
  at::ScalarType dtype;
  double tolerance;  ///< of a tensor's norm
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.folder << " " << c.dtype; }
class LlamaVectors : public testing::TestWithParam<Case> {};

void ExpectLearns(Model& model, const Tensors& expected, std::span<const std::int32_t> documents, double tolerance) {
  model.buffer().EnableGradients();
  const at::Tensor loss = model.LossSum(expected.at("input_ids"), expected.at("labels"), documents);
  ExpectClose(loss.detach().view({1}), expected.at("loss"), tolerance, "loss");
  loss.backward();
  for (const NamedParameter& parameter : model.Parameters()) {
    ExpectClose(parameter.gradient, expected.at("grad/" + parameter.name), tolerance, parameter.name);
  }
}

TEST_P(LlamaVectors, AgreesWithTransformers) {
  const Case& c = GetParam();
  auto loaded = Load(c.folder, c.dtype);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  const Tensors& expected = loaded->expected;
  ExpectClose(loaded->model->Logits(expected.at("input_ids")), expected.at("logits"), c.tolerance, "logits");
  ExpectLearns(*loaded->model, expected, {}, c.tolerance);
}

TEST_P(LlamaVectors, AgreesOnDocumentsThatShareRows) {
  const Case& c = GetParam();
  auto loaded = Load(c.folder, c.dtype);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  const at::Tensor& bounds = loaded->packed.at("cu_seqlens");
  const std::span documents(bounds.data_ptr<std::int32_t>(), static_cast<std::size_t>(bounds.numel()));
  ExpectLearns(*loaded->model, loaded->packed, documents, c.tolerance);
}

// transformers' own gradients in bfloat16 differ from its float32 ones by up to 4.1 % of the norm on these models.
INSTANTIATE_TEST_SUITE_P(Models, LlamaVectors,
                         testing::Values(Case{"untied", at::kFloat, 2e-6}, Case{"tied", at::kFloat, 2e-6},
                                         Case{"untied", at::kBFloat16, 5e-2}, Case{"tied", at::kBFloat16, 5e-2}),
                         [](const auto& info) {
                           return info.param.folder + (info.param.dtype == at::kFloat ? "_f32" : "_bf16");
                         });

}  // namespace
}  // namespace millrace::engine
