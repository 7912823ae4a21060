/** A link to another page of Airflow. */

import { Link as Styled } from "@chakra-ui/react";
import { Link } from "react-router-dom";

/** @param path within Airflow's UI, without a slash at its beginning. */
export function AirflowLink({ path, children }: { path: string; children: string }) {
  return (
    <Styled asChild color="fg.info" overflowWrap="anywhere">
      <Link to={`/${path}`}>{children}</Link>
    </Styled>
  );
}
