// `millrace-train machine`: how fast this machine computes. `millrace job machine` runs it.
#pragma once

#include <CLI/CLI.hpp>

namespace millrace {

/// Adds the command.
CLI::App* AddMachineCommand(CLI::App& app);

/// Measures the machine on all of its cores, and prints a JSON object: `f32`, `bf16`, `memory_bandwidth` and
/// `link_bandwidth`, as engine::MachineRates has them. Returns the exit status.
int PrintMachine();

}  // namespace millrace
