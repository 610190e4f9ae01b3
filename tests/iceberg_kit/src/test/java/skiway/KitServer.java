package skiway;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.rest.RESTCatalog;

/** The server that the suites run against. The command that starts the suites passes its address as `kit.uri`. */
final class KitServer {
  private KitServer() {}

  /** Attach the catalog that `kit.warehouse` names. */
  static RESTCatalog attach(String name, Map<String, String> properties) {
    Map<String, String> settings = new HashMap<>(properties);
    settings.put("uri", required("kit.uri"));
    settings.put("warehouse", required("kit.warehouse"));
    RESTCatalog catalog = new RESTCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(name, settings);
    return catalog;
  }

  /** A folder in which callers may choose the locations of tables and views. */
  static String folder() {
    return required("kit.folder");
  }

  /** Delete everything that a test has left behind, and close the catalog. */
  static void clear(RESTCatalog catalog) {
    clear(catalog, Namespace.empty());
    try {
      catalog.close();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static void clear(RESTCatalog catalog, Namespace parent) {
    for (Namespace namespace : catalog.listNamespaces(parent)) {
      clear(catalog, namespace);
      catalog.listViews(namespace).forEach(catalog::dropView);
      catalog.listTables(namespace).forEach(table -> catalog.dropTable(table, true));
      catalog.dropNamespace(namespace);
    }
  }

  private static String required(String property) {
    String value = System.getProperty(property);
    if (value == null) {
      throw new IllegalStateException("run these tests with `make iceberg-kit`, which sets " + property);
    }
    return value;
  }
}
