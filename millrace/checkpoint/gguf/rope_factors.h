// Llama 3's scaling of positions: parameters in config.json, one factor for each angle of a head in GGUF files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::checkpoint {

/// rope_scaling of the type "llama3" in config.json. The defaults are Llama 3.1's.
struct Llama3Scaling {
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4, original_max_position_embeddings = 8192;
  bool operator==(const Llama3Scaling&) const = default;
};

/// Returns the numbers by which the frequencies of a head are divided, `head_dim` / 2 of them: rope_freqs.weight as
/// convert_hf_to_gguf.py writes it. Frequencies with short wavelengths stay, those with long ones are divided by
/// `factor`, and those between are blended. Source: transformers, modeling_rope_utils.py. `base` is rope_theta.
std::vector<float> RopeFactorsOf(const Llama3Scaling& scaling, double base, std::int64_t head_dim);

/// Returns parameters that give these factors, up to the rounding of float32. Of several such parameters, prefers
/// Llama 3.1's, and then a low_freq_factor of 1. The original positions are a whole number. Returns nothing if there
/// are none, or if the factors do not tell them: some of them must be the largest one, and two or more lie between 1
/// and that.
std::optional<Llama3Scaling> FindLlama3Scaling(std::span<const float> factors, double base);

}  // namespace millrace::checkpoint
