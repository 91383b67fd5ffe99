// The words of the options' enumerations.
#include <array>

#include "millrace/engine/options/named.h"
#include "millrace/train/options/checkpoint_options.h"
#include "millrace/train/options/compile.h"
#include "millrace/train/options/spike_options.h"

namespace millrace::train {
namespace {

// In the order of the enumerators.
constexpr std::array<std::string_view, 3> kCompileNames = {"auto", "on", "off"};
constexpr std::array<std::string_view, 3> kSpikeActionNames = {"none", "skip_step", "roll_back"};
constexpr std::array<std::string_view, 3> kWhenBusyNames = {"wait", "skip", "delay"};

}  // namespace

std::string_view CompileName(Compile compile) { return engine::NameOf(kCompileNames, compile); }
std::optional<Compile> ParseCompile(std::string_view name) { return engine::Named<Compile>(kCompileNames, name); }

std::string_view SpikeActionName(SpikeOptions::Action action) { return engine::NameOf(kSpikeActionNames, action); }
std::optional<SpikeOptions::Action> ParseSpikeAction(std::string_view name) {
  return engine::Named<SpikeOptions::Action>(kSpikeActionNames, name);
}

std::string_view WhenBusyName(WhenBusy when) { return engine::NameOf(kWhenBusyNames, when); }
std::optional<WhenBusy> ParseWhenBusy(std::string_view name) { return engine::Named<WhenBusy>(kWhenBusyNames, name); }

}  // namespace millrace::train
