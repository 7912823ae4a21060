import { resolve } from "node:path";
import { defineConfig } from "vitest/config";
import { licenses } from "./licenses";

// Airflow's page loads the bundle with import() and takes the component from globalThis.AirflowPlugin. It offers the
// libraries below as globals: with its own React, Chakra and router the page has Airflow's look, theme and history.
const globals = {
  react: "React",
  "react/jsx-runtime": "ReactJSXRuntime",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "@chakra-ui/react": "ChakraUI",
  "@emotion/react": "EmotionReact",
};

export default defineConfig({
  build: {
    emptyOutDir: false,
    lib: { entry: resolve(import.meta.dirname, "src/main.tsx"), fileName: "main", formats: ["umd"], name: "AirflowPlugin" },
    outDir: resolve(import.meta.dirname, "../board"),
    rollupOptions: {
      external: Object.keys(globals),
      // Libraries say which of their files are for browsers only; all of this is.
      onwarn: (warning, warn) => warning.code !== "MODULE_LEVEL_DIRECTIVE" && warn(warning),
      output: { globals },
    },
    target: "es2022",
  },
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  plugins: [licenses()],
  esbuild: { jsx: "automatic", legalComments: "inline" },
  test: { include: ["src/**/*.test.ts"] },
});
