// Our Llama against transformers' LlamaForCausalLM: logits, loss and every gradient of two random models (grouped
// heads; tied and untied head), also where documents share rows, that make_llama_vectors.py wrote as Hugging Face
// folders.
#include <gtest/gtest.h>

#include <span>

#include "tests/engine/vectors.h"

namespace millrace::engine {
namespace {

struct Loaded {
  std::unique_ptr<Model> model;
  Tensors expected, packed;
  Tolerances tolerances;
};
Result<Loaded> Load(std::string_view name, at::ScalarType dtype) {
  Loaded loaded;
  loaded.model = MR_TRY(LoadModel(Folder(name), dtype));
  loaded.expected = MR_TRY(LoadSafetensors(Folder(name) / "expected.safetensors"));
  loaded.packed = MR_TRY(LoadSafetensors(Folder(name) / "packed.safetensors"));
  loaded.tolerances = MR_TRY(Tolerances::Load(Folder(name), dtype, 2e-6));
  return loaded;
}

struct Case {
  std::string folder;
  at::ScalarType dtype;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.folder << " " << c.dtype; }
class LlamaVectors : public testing::TestWithParam<Case> {};

/// `prefix`: of the names of the tolerances.
void ExpectLearns(Model& model, const Tensors& expected, std::span<const std::int32_t> documents,
                  const Tolerances& tolerances, const std::string& prefix) {
  model.buffer().EnableGradients();
  const at::Tensor loss = model.LossSum(expected.at("input_ids"), expected.at("labels"), documents);
  ExpectClose(loss.detach().view({1}), expected.at("loss"), tolerances.OfLoss(prefix + "loss"), "loss");
  loss.backward();
  ExpectGradients(model, expected, tolerances, prefix);
}

TEST_P(LlamaVectors, AgreesWithTransformers) {
  const Case& c = GetParam();
  auto loaded = Load(c.folder, c.dtype);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  const Tensors& expected = loaded->expected;
  ExpectClose(loaded->model->Logits(expected.at("input_ids")), expected.at("logits"), loaded->tolerances.Of("logits"),
              "logits");
  ExpectLearns(*loaded->model, expected, {}, loaded->tolerances, "");
}

TEST_P(LlamaVectors, AgreesOnDocumentsThatShareRows) {
  const Case& c = GetParam();
  auto loaded = Load(c.folder, c.dtype);
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  const at::Tensor& bounds = loaded->packed.at("cu_seqlens");
  const std::span documents(bounds.data_ptr<std::int32_t>(), static_cast<std::size_t>(bounds.numel()));
  ExpectLearns(*loaded->model, loaded->packed, documents, loaded->tolerances, "packed/");
}

INSTANTIATE_TEST_SUITE_P(Models, LlamaVectors,
                         testing::Values(Case{"untied", at::kFloat}, Case{"tied", at::kFloat},
                                         Case{"untied", at::kBFloat16}, Case{"tied", at::kBFloat16}),
                         [](const auto& info) {
                           return info.param.folder + (info.param.dtype == at::kFloat ? "_f32" : "_bf16");
                         });

}  // namespace
}  // namespace millrace::engine
