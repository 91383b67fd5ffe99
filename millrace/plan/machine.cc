#include "millrace/plan/machine.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "millrace/base/bytes.h"
#include "millrace/base/config.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/cores.h"
#include "millrace/plan/built_in_machines.h"

namespace millrace::plan {
namespace {

using config::Node;

constexpr std::uint64_t kMaxBytes = 64 * kKiB;  // of a description
constexpr double kMax = 1e9;
constexpr int kZen5 = 26;  // AMD's family

Result<double> Required(const Node& node, double least) {
  if (!node) return Fail(node.Invalid("is required"));
  return node.Number(least, kMax);
}

Result<Link> ReadLink(const Node& node) {
  if (!node) return Fail(node.Invalid("is required: bandwidth in GB/s and latency in microseconds"));
  MR_TRY(node.RejectUnknown({"bandwidth", "latency"}));
  Link link;
  link.bandwidth = 1e9 * MR_TRY(Required(node["bandwidth"], 1e-6));
  link.latency = 1e-6 * MR_TRY(Required(node["latency"], 0));
  return link;
}

constexpr double kTera = 1e12;

/// The words that a card's name has, and its peaks. Cards with another form factor come before the usual ones.
struct Card {
  std::string_view model, form;
  GpuPeaks tera;
};

// Dense rates: where a data sheet gives those "with sparsity", half of them.
//   https://www.nvidia.com/en-us/data-center/a100/   A100
//   https://www.nvidia.com/en-us/data-center/h100/   H100 SXM and NVL; the PCIe card from the data sheet of 2022
//   https://www.nvidia.com/en-us/data-center/h200/   H200 SXM and NVL
//   https://www.nvidia.com/en-us/data-center/hgx/    HGX B200
//   https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/  GH200
constexpr Card kCards[] = {{"H100", "PCIe", {51, 378, 756.5, 1513}}, {"H100", "NVL", {60, 417.5, 835.5, 1670.5}},
                           {"H100", "", {67, 494.5, 989.5, 1979}},   {"H200", "NVL", {60, 417.5, 835.5, 1670.5}},
                           {"GH200", "", {67, 494.5, 989.5, 1979}},  {"H200", "", {67, 494.5, 989.5, 1979}},
                           {"A100", "", {19.5, 156, 312, 0}},        {"B200", "", {75, 1100, 2250, 4500}}};

/// Returns whether the name has the word between other characters than letters and digits: GB200 is no B200.
bool HasWord(std::string_view name, std::string_view word) {
  const auto is_part = [&](std::size_t at) {
    if (at >= name.size()) return false;
    const char c = name[at];
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return true;
  }
  return false;
}

}  // namespace

double Machine::RankMemory(int ranks) const { return accelerators > 0 ? memory : memory / ranks; }
double Machine::RankBandwidth(int ranks) const {
  return accelerators > 0 ? memory_bandwidth : memory_bandwidth / ranks;
}
double Machine::RankRate(bool bf16, int ranks) const {
  const double rate = bf16 ? bf16_rate : f32_rate;
  return accelerators > 0 ? rate : rate * cores / ranks;
}

std::string Machine::ToYaml(std::string_view comment) const {
  const auto link_text = [](const Link& link) {
    return fmt::format("{{bandwidth: {:.4g}, latency: {:.4g}}}", link.bandwidth / 1e9, link.latency * 1e6);
  };
  std::string text = fmt::format("# {}\nname: {}\n", comment, name);
  if (accelerators > 0) text += fmt::format("accelerators: {}\n", accelerators);
  text += fmt::format("cores: {}\nmemory: {:.4g}  # GB\n", cores, memory / 1e9);
  text += fmt::format("f32: {:.4g}  # GFLOP/s of a core or an accelerator\nbf16: {:.4g}\n", f32_rate / 1e9,
                      bf16_rate / 1e9);
  if (copies_bf16) text += "copies_bf16: true\n";
  text += fmt::format("memory_bandwidth: {:.4g}  # GB/s of all cores, or of an accelerator\n", memory_bandwidth / 1e9);
  if (accelerators > 0) {
    text +=
        fmt::format("host_bandwidth: {:.4g}  # GB/s between an accelerator and the host's memory, in one direction\n",
                    host_bandwidth / 1e9);
  }
  text += fmt::format("process_memory: {:.4g}  # GB\noperation: {:.4g}  # microseconds\noverlap: {:.4g}\n",
                      process_memory / 1e9, operation * 1e6, overlap);
  return text + fmt::format("link: {}  # GB/s, microseconds\nnetwork: {}\n", link_text(link), link_text(network));
}

Result<Machine> Machine::Parse(std::string_view yaml, std::string what) {
  const config::Document document = MR_TRY(config::Document::Parse(yaml, std::move(what)));
  const Node root = document.Root();
  MR_TRY(root.RejectUnknown({"name", "sources", "accelerators", "cores", "memory", "f32", "bf16", "copies_bf16",
                             "memory_bandwidth", "host_bandwidth", "process_memory", "operation", "overlap", "link",
                             "network"}));
  Machine machine;
  machine.name = MR_TRY(root["name"].String());
  if (const Node node = root["accelerators"]) machine.accelerators = static_cast<int>(MR_TRY(node.Int(0, 1024)));
  if (const Node node = root["cores"]) machine.cores = static_cast<int>(MR_TRY(node.Int(1, 4096)));
  machine.memory = 1e9 * MR_TRY(Required(root["memory"], 1e-3));
  machine.f32_rate = 1e9 * MR_TRY(Required(root["f32"], 1e-3));
  machine.bf16_rate = 1e9 * MR_TRY(Required(root["bf16"], 1e-3));
  if (const Node node = root["copies_bf16"]) machine.copies_bf16 = MR_TRY(node.Bool());
  machine.memory_bandwidth = 1e9 * MR_TRY(Required(root["memory_bandwidth"], 1e-3));
  if (const Node node = root["host_bandwidth"]) machine.host_bandwidth = 1e9 * MR_TRY(node.Number(1e-3, kMax));
  machine.process_memory = 1e9 * MR_TRY(Required(root["process_memory"], 0));
  machine.operation = 1e-6 * MR_TRY(Required(root["operation"], 0));
  machine.overlap = MR_TRY(Required(root["overlap"], 0));
  if (machine.overlap > 1) return Fail(root["overlap"].Invalid("is a share: from 0 to 1"));
  machine.link = MR_TRY(ReadLink(root["link"]));
  machine.network = MR_TRY(ReadLink(root["network"]));
  return machine;
}

Result<Machine> Machine::Find(const std::string& name_or_file) {
  if (name_or_file.empty()) return ThisMachine();
  for (const BuiltInMachine& machine : kBuiltInMachines) {
    if (machine.name == name_or_file) return Parse(machine.yaml, fmt::format("{}.yaml", name_or_file));
  }
  const auto text = ReadFile(name_or_file, kMaxBytes);
  if (text) return Parse(*text, name_or_file);
  if (text.error().code() != Code::kNotFound) return Fail(text.error());
  return Fail(Code::kNotFound, "no machine \"{}\": give a file, or one of {}", name_or_file,
              fmt::join(MachineNames(), ", "));
}

std::string_view Machine::DescriptionOf(const CpuInfo& cpu) {
  if (!cpu.avx512) return "cpu-avx2";
  return cpu.vendor == "AuthenticAMD" && cpu.family >= kZen5 ? "cpu-zen5" : "cpu";
}

Machine Machine::ThisMachine() {
  Machine machine = Find(std::string(DescriptionOf(DetectCpu()))).value();
  machine.name = "this machine";
  machine.cores = UsableCores();
  machine.memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  return machine;
}

std::vector<std::string_view> MachineNames() {
  std::vector<std::string_view> names;
  for (const BuiltInMachine& machine : kBuiltInMachines) names.push_back(machine.name);
  return names;
}

std::optional<GpuPeaks> PeaksOf(std::string_view card) {
  const auto* const found = std::ranges::find_if(kCards, [&](const Card& each) {
    return HasWord(card, each.model) && (each.form.empty() || HasWord(card, each.form));
  });
  if (found == std::end(kCards)) return std::nullopt;
  const GpuPeaks& tera = found->tera;
  return GpuPeaks{
      .f32 = kTera * tera.f32, .tf32 = kTera * tera.tf32, .bf16 = kTera * tera.bf16, .fp8 = kTera * tera.fp8};
}

}  // namespace millrace::plan
