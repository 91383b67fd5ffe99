// The description of the machines that a job runs on, as a plan needs it: docs/machines/*.yaml.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/process/cpu.h"
#include "millrace/base/result.h"

namespace millrace::plan {

/// A way between ranks. A rank sends and receives at once.
struct Link {
  double bandwidth = 0;  ///< bytes a second, in one direction
  double latency = 0;    ///< seconds of a message
};

/// One machine of a job; all are the same. Rates are those that good code reaches, not peaks of data sheets. Plain
/// data.
struct Machine {
  std::string name;
  int accelerators = 0;          ///< 0: the ranks share the cores
  int cores = 1;                 ///< counts only without accelerators
  double memory = 0;             ///< bytes of an accelerator, or of the machine without accelerators
  double f32_rate = 0;           ///< floating-point operations a second in large products, of an accelerator or a core
  double bf16_rate = 0;          ///< the same with bfloat16 inputs
  bool copies_bf16 = false;      ///< products of bfloat16 are made of float32 copies
  double memory_bandwidth = 0;   ///< bytes a second, of an accelerator or of all cores
  double host_bandwidth = 25e9;  ///< bytes a second between an accelerator and the host's memory, in one direction
  double process_memory = 0;     ///< bytes of a rank before it has a model: libraries, contexts, communication
  double operation = 0;          ///< seconds to start one operation
  double overlap = 0;  ///< share of computation that communication may run beside, and of it that is then free
  Link link;           ///< between ranks of a machine, for each rank
  Link network;        ///< between machines; the bandwidth is all ranks' together

  /// Returns a description that Parse reads, with `comment` above it.
  std::string ToYaml(std::string_view comment) const;

  /// Returns one rank's part of a machine that `ranks` ranks share. REQUIRES: ranks >= 1.
  double RankMemory(int ranks) const;
  double RankBandwidth(int ranks) const;
  double RankRate(bool bf16, int ranks) const;

  /// Errors: kInvalidArgument with line and column; `what` is the file's name.
  static Result<Machine> Parse(std::string_view yaml, std::string what);
  /// Returns the machine of a file, or of a name in MachineNames(). Empty: ThisMachine().
  /// Errors: those of Parse; kNotFound if there is neither.
  static Result<Machine> Find(const std::string& name_or_file);
  /// Returns the name of the description for a processor: `cpu-avx2` without AVX-512, `cpu-zen5` for AMD's Zen 5 and
  /// later, else `cpu`.
  static std::string_view DescriptionOf(const CpuInfo& cpu);
  /// Returns the description for this processor, with the cores and the memory of this machine.
  static Machine ThisMachine();
};

/// Returns the names of the descriptions that are built in, sorted: those of docs/machines.
std::vector<std::string_view> MachineNames();

/// Floating-point operations a second in dense products, as NVIDIA's data sheets promise them.
struct GpuPeaks {
  double f32 = 0;
  double tf32 = 0;
  double bf16 = 0;  ///< of float16, too
  double fp8 = 0;   ///< 0: it has none
};

/// Returns the peaks of a card: "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB". Nothing if it is not one of the A100,
/// H100, GH200, H200 and B200.
std::optional<GpuPeaks> PeaksOf(std::string_view card);

}  // namespace millrace::plan
