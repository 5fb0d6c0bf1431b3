// SPDX-License-Identifier: MIT
// Where the plugin's settings are: the environment, a sluice.conf beside the plugin, /etc/criu/sluice.conf.
// The first that has a name wins.
//
// The file beside the plugin is a container's own. Engines give CRIU a configuration file per container (runc
// and crun: the annotation org.criu.config). A line `libdir FOLDER` there makes CRIU load the plugin from
// FOLDER, which has a link to the plugin and a sluice.conf. The path that the plugin was loaded by counts,
// not the link's target (dladdr: as dlopen(3) was given it; CRIU's plugin.c joins libdir and name).
#pragma once

#include <string>
#include <vector>

#include "settings/config.h"

namespace sluice::settings {

// In order of precedence. Main thread.
std::vector<std::string> settings_files();

// The Lookup over all of these, see environment_and_files().
Lookup plugin_settings(LogLines& lines);

}  // namespace sluice::settings
