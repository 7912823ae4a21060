import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Plugin } from "vite";

interface Contained {
  name: string;
  version: string;
  license: string;
  text: string;
}

// The package of a module: the nearest folder whose package.json has a name and a version.
function packageOf(module: string): Contained | undefined {
  for (let folder = dirname(module); folder.includes("node_modules"); folder = dirname(folder)) {
    const file = join(folder, "package.json");
    if (existsSync(file)) {
      const { name, version, license } = JSON.parse(readFileSync(file, "utf8"));
      if (name && version) {
        const found = readdirSync(folder).find((each) => /^licen[cs]e(\.|$)/i.test(each));
        if (!found || !license) {
          throw new Error(`${name} ${version} is in the bundle, and its package has no license: take another package`);
        }
        return { name, version, license, text: readFileSync(join(folder, found), "utf8").trim() };
      }
    }
  }
  return undefined;
}

/** Writes LICENSES.txt beside the bundle: the license of every package whose code is in it. */
export function licenses(): Plugin {
  return {
    name: "licenses",
    generateBundle(_, bundle) {
      const contained = new Map<string, Contained>();
      for (const chunk of Object.values(bundle)) {
        for (const [module, { renderedLength }] of Object.entries(chunk.type === "chunk" ? chunk.modules : {})) {
          const found = renderedLength > 0 ? packageOf(module.replace(/^\0/, "")) : undefined;
          if (found) {
            contained.set(found.name, found);
          }
        }
      }
      const sorted = [...contained.values()].sort((one, other) => (one.name < other.name ? -1 : 1));
      const parts = sorted.map(({ name, version, license, text }) => `${name} ${version} (${license})\n\n${text}\n`);
      const head = "main.umd.cjs contains code of these packages. React, Chakra UI and the router are Airflow's own.\n";
      const source = [head, ...parts].join(`\n${"-".repeat(80)}\n\n`);
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source });
    },
  };
}
